"""Settings are checked here, once: each check returns the clean value or says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, TypeVar

from flatmin.core.errors import SettingError

MAX_DEPTH = 1_000_000
LARGEST_COUNT = 10**15  # of anything; far from where 64 bits end
LEAST = 1e-300  # of what must be positive: its inverse is far from where numbers end
T = TypeVar("T")
_SHORT = 60  # characters of a value in a message
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def shown(value: object) -> str:
    """A value in a message: one line, and not a long one.

    >>> shown("x"), shown([1.5] * 40)
    ("'x'", '[1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5,...')
    """
    text = re.sub(r"\s*\n\s*", " ", repr(value))
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."


def kind_of(value: object) -> str:
    """What a value is, in a message."""
    return "None" if value is None else type(value).__name__


def check_kind(name: str, value: object, kind: type[T], hint: str = "") -> T:
    """A value of this kind, or a SettingError that says what was given instead."""
    if isinstance(value, kind):
        return value
    raise SettingError(f"{name} must be of type {kind.__name__}{hint}, got {kind_of(value)}")


def check_several(name: str, values: object, what: str) -> list[Any]:
    """The members of a list, a tuple or the like; text and what has no members are refused."""
    if not isinstance(values, str | bytes | Mapping) and isinstance(values, Iterable):
        with suppress(TypeError):  # an array without an axis
            return list(values)
    raise SettingError(f"{name} must be {what}, got {shown(values)}")


def number_in(text: str) -> float | None:
    """The finite number that is written here in plain digits; None if there is none.

    Python's float also takes underscores, digits of other scripts, nan and inf.

    >>> number_in("1e-3"), number_in(" 7 "), number_in("1_0"), number_in("\u0663"), number_in("nan")
    (0.001, 7.0, None, None, None)
    """
    value = float(text) if _NUMBER.fullmatch(text.strip()) else float("inf")
    return value if abs(value) < float("inf") else None


def whole_in(text: str) -> int | None:
    """The whole number that is written here, every digit of it; 1e6 is one.

    >>> whole_in("12345678901234567891"), whole_in("1e6"), whole_in("1.5"), whole_in("\u00b2")
    (12345678901234567891, 1000000, None, None)
    """
    value = number_in(text)
    if value is None or value != value // 1:
        return None
    return int(text) if _WHOLE.fullmatch(text.strip()) else int(value)


def check_count(name: str, value: object, largest: int = LARGEST_COUNT) -> int:
    """A whole number of at least 1, or a SettingError that names it."""
    whole = isinstance(value, Real) and not isinstance(value, bool) and value == value // 1
    if not whole or not value >= 1:  # type: ignore[operator]
        raise SettingError(f"{name} must be a whole number of at least 1, got {shown(value)}")
    number: int = int(value)  # type: ignore[call-overload]
    if number > largest:
        raise SettingError(f"{name} must be at most {largest}, got {number!r:.60}")
    return number


def check_depth(value: object) -> int:
    """The number of layers L."""
    return check_count("depth", value, MAX_DEPTH)


def number_of(value: object) -> float | None:
    """The value as a float, or None."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def check_positive(name: str, value: object) -> float:
    """A finite number above zero, or a SettingError that names it."""
    number = number_of(value)
    if number is None or not 0.0 < number < float("inf"):
        raise SettingError(f"{name} must be a positive number, got {shown(value)}")
    if number < LEAST:
        raise SettingError(f"{name} must be at least {LEAST:g}, got {shown(value)}")
    return number


def check_nonnegative(name: str, value: object) -> float:
    """A finite number of at least zero, or a SettingError that names it."""
    number = number_of(value)
    if number is None or not 0.0 <= number < float("inf"):
        raise SettingError(f"{name} must be a number of at least 0, got {shown(value)}")
    return number


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """One of the names allowed, or a SettingError that lists them."""
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    close = get_close_matches(value, known, n=1) if isinstance(value, str) else []
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise SettingError(f"{name} must be one of {', '.join(known)}, got {shown(value)}{hint}")


def check_seed(seed: object) -> int:
    """A whole number of at least 0, or a SettingError."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise SettingError(f"seed must be a whole number of at least 0, got {shown(seed)}")
    return int(seed)
