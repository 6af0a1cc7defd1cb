"""What a value in a study's file may be, and how a wrong one is described in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from numbers import Real
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from flatmin.core.checks import (
    MAX_DEPTH,
    check_choice,
    check_count,
    check_nonnegative,
    check_positive,
    check_seed,
)
from flatmin.dynamics.descent import MAX_STEPS
from flatmin.dynamics.endings import check_share

MAX_REPETITIONS = 10**9


class Section(BaseModel):
    """A table of the file: its keys are known, its values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def number(check: Callable[[str, object], float]) -> Any:
    """A check of numbers that takes no text and no truth value for a number."""

    def validate(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"must be a number, got {value!r}")
        return check("", value)

    return BeforeValidator(validate)


def _whole(largest: int) -> Any:
    return BeforeValidator(lambda value: check_count("", value, largest))


def one_of(choices: Iterable[str]) -> Any:
    """One of the names allowed."""
    known = tuple(choices)
    return BeforeValidator(lambda value: check_choice("", value, known))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a text that is not empty, got {value!r}")
    return value


Positive = Annotated[float, number(check_positive)]
Share = Annotated[float, number(check_share)]
NonNegative = Annotated[float, number(check_nonnegative)]
Count = Annotated[int, _whole(10**9)]
Depth = Annotated[int, _whole(MAX_DEPTH)]
Steps = Annotated[int, _whole(MAX_STEPS)]
Repetitions = Annotated[int, _whole(MAX_REPETITIONS)]
Seed = Annotated[int, BeforeValidator(check_seed)]
Text = Annotated[str, BeforeValidator(_text)]


def describe(error: ValidationError, source: str, root: type[BaseModel]) -> str:
    """The first complaint in one line: file, where, what is wrong, what is expected."""
    found = error.errors()
    first = found[0]
    where = [str(part) for part in first["loc"]]
    kind, message = first["type"], first["msg"].removeprefix("Value error, ").strip()
    if kind == "extra_forbidden":
        message = f"is not a known key{_suggestion(where, root)}"
    elif kind == "missing":
        message = "is missing"
    elif kind != "value_error":
        wanted = message.removeprefix("Input should be ")
        if kind in ("model_type", "model_attributes_type"):
            wanted = "a table of keys"
        message = f"must be {wanted}, got {first['input']!r}"
    message = message.removeprefix("seed ") if where[-1:] == ["seed"] else message
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    place = ".".join(where)
    return " ".join(f"{source}: {place} {message}{more}".replace("  ", " ").split())


def _suggestion(where: list[str], root: type[BaseModel]) -> str:
    """The nearest known key, or all of them."""
    known = list(_fields(root, where[:-1]))
    close = get_close_matches(where[-1], known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; expected {', '.join(known)}"


def _fields(model: type[BaseModel], path: list[str]) -> Mapping[str, Any]:
    for part in path:
        if part.isdigit():
            continue
        inner = _model_in(model.model_fields[part].annotation)
        if inner is None:
            return {}
        model = inner
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `tuple[Zip, ...]` or `RecordSpec | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        inner = _model_in(part)
        if inner is not None:
            return inner
    return None
