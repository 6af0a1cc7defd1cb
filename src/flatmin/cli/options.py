"""Reading option values that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatmin.core.checks import MAX_DEPTH, check_count
from flatmin.core.errors import SettingError
from flatmin.core.files import make_directory

if TYPE_CHECKING:
    from flatmin.data.preparation import Preparation

# What is done to a table first, in this order; the same options wherever one is read.
Features = Annotated[
    list[str] | None, typer.Option(help="Feature columns: a,b or repeat. Default: all others.")
]
Drop = Annotated[list[str] | None, typer.Option(help="Columns to leave out: a,b or repeat.")]
OneHot = Annotated[
    list[str] | None, typer.Option("--one-hot", help="Columns of categories: a,b or repeat.")
]
Missing = Annotated[
    str | None, typer.Option(help="Missing values: drop (the row) or mean (of the column).")
]
Intercept = Annotated[bool, typer.Option("--intercept", help="Centre features and target.")]
Standardise = Annotated[
    bool, typer.Option("--standardise", help="Features to mean 0 and standard deviation 1.")
]


def preparation(
    drop: list[str] | None,
    one_hot: list[str] | None,
    missing: str | None,
    intercept: bool,
    standardise: bool,
) -> Preparation:
    """What is done to the table, from the options above."""
    from flatmin.data.preparation import Preparation

    return Preparation(
        drop=drop or (),
        one_hot=one_hot or (),
        missing=missing,
        intercept=intercept,
        standardise=standardise,
    )


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


def figure_path(text: str) -> Path:
    """Where a figure goes; its suffix must be one that matplotlib writes."""
    path = Path(text)
    if path.suffix.lower() not in {".png", ".pdf", ".svg"}:
        raise SettingError(f"--figure must end in .png, .pdf or .svg, got {text!r}")
    if path.is_dir():
        raise SettingError(f"--figure must name a file, got the folder {text!r}")
    make_directory(path.parent)
    return path


def file_path(name: str, text: str) -> Path:
    """Where a file goes; its folder is made."""
    path = Path(text)
    if path.is_dir():
        raise SettingError(f"{name} must name a file, got the folder {text!r}")
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
