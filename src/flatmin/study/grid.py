"""The grid of a study: axes that are crossed, and groups of axes that move together."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from pydantic import model_serializer, model_validator

from flatmin.core.checks import MAX_DEPTH, check_count, check_nonnegative, check_positive
from flatmin.dynamics.descent import MAX_STEPS
from flatmin.study.fields import MAX_REPETITIONS, Section

# In this order, the last one fastest, whatever the order in the file.
AXES = ("depth", "width", "scale", "learning_rate", "steps", "repetitions")
WHOLE = {"depth", "width", "steps", "repetitions"}
MAX_VALUES = 1_000_000

Value = int | float
Point = dict[str, Value]


class Axis(Section):
    """Values of one setting: a list, or `linspace` or `logspace` as NumPy has them."""

    values: tuple[float, ...] | None = None
    linspace: tuple[float, float, int] | None = None
    logspace: tuple[float, float, int] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_plain(cls, data: Any) -> Any:
        if isinstance(data, Axis):
            return data
        if isinstance(data, dict) and len(data) == 1 and set(data) <= {"linspace", "logspace"}:
            ((name, ends),) = data.items()
            if not (isinstance(ends, list | tuple) and len(ends) == 3 and all(map(_real, ends))):
                raise ValueError(f"{name} must be [from, to, number of values], got {ends!r}")
            return {name: (ends[0], ends[1], check_count("number of values", ends[2], MAX_VALUES))}
        if not isinstance(data, list | tuple) or not data:
            raise ValueError(
                "must be a list of values, { linspace = [from, to, number] } or "
                f"{{ logspace = [from, to, number] }}, got {data!r}"
            )
        for value in data:
            if not _real(value):
                raise ValueError(f"must be a list of numbers, got {value!r} in it")
        if len(data) > MAX_VALUES:
            raise ValueError(f"must have at most {MAX_VALUES} values, got {len(data)}")
        return {"values": data}

    def expanded(self) -> tuple[float, ...]:
        """The values themselves."""
        if self.values is not None:
            return self.values
        with np.errstate(over="ignore", invalid="ignore"):  # who takes the values refuses these
            if self.linspace is not None:
                return tuple(np.linspace(*self.linspace).tolist())
            assert self.logspace is not None
            return tuple(np.logspace(*self.logspace).tolist())

    def plain(self, whole: bool) -> Any:
        """As it is written in the file; `whole` numbers without a decimal point."""
        if self.values is not None:
            return [int(value) for value in self.values] if whole else list(self.values)
        name = "linspace" if self.linspace is not None else "logspace"
        return {name: list(getattr(self, name))}


class Zip(Section):
    """Axes of one length that move together."""

    depth: Axis | None = None
    width: Axis | None = None
    scale: Axis | None = None
    learning_rate: Axis | None = None
    steps: Axis | None = None
    repetitions: Axis | None = None

    def axes(self) -> dict[str, Axis]:
        """The axes that are there, in the order of AXES."""
        return {name: axis for name in AXES if (axis := getattr(self, name)) is not None}

    def columns(self) -> dict[str, list[Value]]:
        """The values of each axis, checked."""
        return {name: _checked(name, axis) for name, axis in self.axes().items()}

    @model_serializer
    def plain(self) -> dict[str, Any]:
        """As it is written in the file."""
        return {name: axis.plain(name in WHOLE) for name, axis in self.axes().items()}

    @model_validator(mode="after")
    def _one_length(self) -> Zip:
        lengths = {name: len(column) for name, column in self.columns().items()}
        if type(self) is Zip and len(set(lengths.values())) > 1:
            given = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"must hold lists of one length, got {given}")
        return self


class Grid(Zip):
    """Axes to be crossed, and zipped groups of them."""

    zip: tuple[Zip, ...] = ()

    @model_validator(mode="after")
    def _each_once(self) -> Grid:
        seen: set[str] = set()
        for group in self.groups():
            for name in group:
                if name in seen:
                    raise ValueError(f"must give {name} once, got it twice")
                seen.add(name)
            rows = list(zip(*group.values(), strict=True))
            twice = [row for row, count in Counter(rows).items() if count > 1]
            if twice:
                raise ValueError(f"must not repeat a value of {', '.join(group)}, got {twice[0]}")
        if self.repetitions is not None:
            raise ValueError(
                "must not cross repetitions: set repetitions at the top, or in [[grid.zip]]"
            )
        return self

    @model_serializer
    def plain(self) -> dict[str, Any]:
        """As it is written in the file, whatever the order of groups there."""
        zipped = sorted((one.plain() for one in self.zip if one.axes()), key=json.dumps)
        return super().plain() | ({"zip": zipped} if zipped else {})

    def groups(self) -> list[dict[str, list[Value]]]:
        """Columns that move together, one group per dimension of the grid."""
        alone = [{name: _checked(name, axis)} for name, axis in self.axes().items()]
        joined = [group.columns() for group in self.zip if group.axes()]
        return sorted(alone + joined, key=lambda group: AXES.index(next(iter(group))))

    def names(self) -> set[str]:
        """Every setting the grid varies."""
        return {name for group in self.groups() for name in group}

    def size(self) -> int:
        """The number of points, without making them."""
        return math.prod(len(next(iter(group.values()))) for group in self.groups())

    def points(self) -> Iterator[Point]:
        """Every point, the last group fastest."""
        groups = [
            [dict(zip(group, row, strict=True)) for row in zip(*group.values(), strict=True)]
            for group in self.groups()
        ]
        for parts in product(*groups):
            yield {name: value for part in parts for name, value in part.items()}


def _real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_LARGEST = {"depth": MAX_DEPTH, "steps": MAX_STEPS, "repetitions": MAX_REPETITIONS, "width": 10**9}


def _checked(name: str, axis: Axis) -> list[Value]:
    values = axis.expanded()
    if name == "scale":
        return [check_nonnegative("scale", value) for value in values]
    if name == "learning_rate":
        return [check_positive("learning_rate", value) for value in values]
    return [check_count(name, value, _LARGEST[name]) for value in values]
