"""Reading option values that several commands share."""

from __future__ import annotations

from pathlib import Path

from flatmin.checks import check_depth
from flatmin.errors import SettingError


def number(name: str, text: str) -> float:
    """A number from the command line, or a SettingError that names the option."""
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"{name} must be a number, got {text!r}") from None


def depth(text: str, name: str = "--depth") -> int:
    """A depth from the command line."""
    try:
        return check_depth(int(text) if text.strip().lstrip("+-").isdigit() else number(name, text))
    except SettingError as error:
        raise SettingError(str(error).replace("depth must", f"{name} must", 1)) from None


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingError(
            f"--figure cannot be written to {str(path.parent)!r}: {reason}"
        ) from None
    return path
