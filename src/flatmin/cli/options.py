"""Reading option values that several commands share."""

from __future__ import annotations

from pathlib import Path

from flatmin.atomic import make_directory
from flatmin.checks import MAX_DEPTH, check_count
from flatmin.errors import SettingError


def number(name: str, text: str) -> float:
    """A number from the command line, or a SettingError that names the option."""
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"{name} must be a number, got {text!r}") from None


def depth(text: str, name: str = "--depth") -> int:
    """A depth from the command line."""
    value = int(text) if text.strip().lstrip("+-").isdecimal() else number(name, text)
    return check_count(name, value, MAX_DEPTH)


def depths(text: str) -> list[int]:
    """Depths separated by commas, sorted, each once."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise SettingError(f"--depths must list depths such as 2,5,10, got {text!r}")
    return sorted({depth(part, "each of --depths") for part in parts})


def names(values: list[str] | None) -> list[str] | None:
    """Column names given by repeating an option."""
    return list(values) if values else None


def figure_path(text: str) -> Path:
    """Where a figure goes; its suffix must be one that matplotlib writes."""
    path = Path(text)
    if path.suffix.lower() not in {".png", ".pdf", ".svg"}:
        raise SettingError(f"--figure must end in .png, .pdf or .svg, got {text!r}")
    if path.is_dir():
        raise SettingError(f"--figure must name a file, got the folder {text!r}")
    make_directory(path.parent)
    return path


def whole(name: str, text: str, least: int = 1) -> int:
    """A whole number from the command line; 1e6 is understood."""
    value = number(name, text)
    if value != value // 1 or value < least:
        raise SettingError(f"{name} must be a whole number of at least {least}, got {text!r}")
    return int(value)


def positive(name: str, text: str) -> float:
    """A number above zero from the command line."""
    value = number(name, text)
    if not 0.0 < value < float("inf"):
        raise SettingError(f"{name} must be a positive number, got {text!r}")
    return value


def share(name: str, text: str) -> float:
    """A number between 0 and 1 from the command line."""
    value = number(name, text)
    if not 0.0 < value < 1.0:
        raise SettingError(f"{name} must lie between 0 and 1, got {text!r}")
    return value


def learning_rate(text: str, critical: float) -> float:
    """A learning rate: a number, `critical`, or a multiple of it such as `0.5critical`."""
    if text.endswith("critical"):
        factor = text.removesuffix("critical")
        rate = (number("--learning-rate", factor) if factor else 1.0) * critical
    else:
        rate = number("--learning-rate", text)
    if not 0.0 < rate < float("inf"):
        raise SettingError(f"--learning-rate must be a positive number, got {text!r}")
    return rate
