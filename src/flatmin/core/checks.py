"""Settings are checked here, once: each check returns the clean value or says what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real

from flatmin.core.errors import SettingError

MAX_DEPTH = 1_000_000


def check_count(name: str, value: object, largest: int | None = None) -> int:
    """A whole number of at least 1, or a SettingError that names it."""
    whole = isinstance(value, Real) and not isinstance(value, bool) and value == value // 1
    if not whole or not value >= 1:  # type: ignore[operator]
        raise SettingError(f"{name} must be a whole number of at least 1, got {value!r}")
    number: int = int(value)  # type: ignore[call-overload]
    if largest is not None and number > largest:
        raise SettingError(f"{name} must be at most {largest}, got {number}")
    return number


def check_depth(value: object) -> int:
    """The number of layers L."""
    return check_count("depth", value, MAX_DEPTH)


def _number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def check_positive(name: str, value: object) -> float:
    """A finite number above zero, or a SettingError that names it."""
    number = _number(value)
    if number is None or not 0.0 < number < float("inf"):
        raise SettingError(f"{name} must be a positive number, got {value!r}")
    return number


def check_nonnegative(name: str, value: object) -> float:
    """A finite number of at least zero, or a SettingError that names it."""
    number = _number(value)
    if number is None or not 0.0 <= number < float("inf"):
        raise SettingError(f"{name} must be a number of at least 0, got {value!r}")
    return number


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """One of the names allowed, or a SettingError that lists them."""
    known = list(choices)
    if value in known:
        return value
    close = get_close_matches(str(value), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise SettingError(f"{name} must be one of {', '.join(known)}, got {value!r}{hint}")


def check_seed(seed: object) -> int:
    """A whole number of at least 0, or a SettingError."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise SettingError(f"seed must be a whole number of at least 0, got {seed!r}")
    return int(seed)
