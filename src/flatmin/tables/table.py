"""What every source becomes, and what is asked of its columns and values."""

from __future__ import annotations

import difflib
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from flatmin.errors import DataError

PathLike = str | os.PathLike[str]
FloatArray = npt.NDArray[np.float64]
Names = str | Sequence[str]

LARGEST = 1e140  # squares summed over all rows and columns must stay below 1.8e308
ROWS = 8192  # rows handled at a time: fast in cache, small in memory


@dataclass(frozen=True)
class Table:
    """The chosen columns of a source and one pass over their values (features, then targets)."""

    source: str
    features: tuple[str, ...]
    targets: tuple[str, ...]
    blocks: Iterator[FloatArray]


def choose_columns(
    source: str,
    names: Sequence[str],
    target: Names,
    features: Names | None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the feature columns and of the target columns.

    A name in `groups` stands for several columns. Without `features`, every column that is not a
    target is a feature.

    >>> choose_columns("data.csv", ["a", "b", "y"], "y", None)
    (('a', 'b'), ('y',))
    """
    known = [name for name in names if name]
    present = set(known)
    if len(present) < len(known):
        name, times = Counter(known).most_common(1)[0]
        raise DataError(f"{source}: the column name {name!r} occurs {times} times")

    def expand(argument: str, asked: Names) -> tuple[str, ...]:
        found: list[str] = []
        for name in (asked,) if isinstance(asked, str) else asked:
            if not isinstance(name, str):
                raise DataError(f"{argument} {name!r} is not a name; expected text")
            if groups and name in groups and name not in present:
                found.extend(groups[name])
            elif name in present:
                found.append(name)
            else:
                near = difflib.get_close_matches(name, [*known, *(groups or ())], 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                shown = ", ".join(known[:8]) + (f", ... ({len(known)})" if len(known) > 8 else "")
                raise DataError(
                    f"{source}: no column {name!r} ({argument}); {hint}columns: {shown}"
                )
        if len(set(found)) < len(found):
            name = Counter(found).most_common(1)[0][0]
            raise DataError(f"{source}: the {argument} {name!r} is given twice")
        return tuple(found)

    wanted = expand("target", target)
    if not wanted:
        raise DataError(f"{source}: no target given; expected the name of a column")
    if features is None:
        taken = set(wanted)
        chosen = tuple(name for name in known if name not in taken)
        if "" in names:
            raise DataError(
                f"{source}: column {list(names).index('') + 1} has no name; "
                "name it or list the features to use"
            )
    else:
        chosen = expand("feature", features)
        for name in wanted:
            if name in chosen:
                raise DataError(f"{source}: the target {name!r} is also among the features")
    if not chosen:
        raise DataError(f"{source}: no features left beside the target {', '.join(wanted)}")
    return chosen, wanted


def check_values(block: FloatArray, names: Sequence[str], first_row: int, source: str) -> None:
    """Refuse the first value that is not finite or whose square overflows, by row and column."""
    if acceptable(block):
        return
    row, column = np.argwhere(~(np.abs(block) <= LARGEST))[0]
    where = f"{source}: column {names[column]!r}, row {first_row + row} (counting from 0)"
    raise DataError(f"{where} is {complaint(float(block[row, column]))}")


def acceptable(block: FloatArray) -> bool:
    return not block.size or bool(block.max() <= LARGEST and block.min() >= -LARGEST)


def complaint(value: float) -> str:
    """What is wrong with a value that is not acceptable."""
    if math.isfinite(value):
        return f"{value:g}, beyond {LARGEST:g}: its square overflows; rescale the column"
    return f"{value}; every value must be a finite number"


def checked(
    source: str, features: tuple[str, ...], targets: tuple[str, ...], blocks: Iterable[FloatArray]
) -> Table:
    """A table whose blocks are checked as they pass."""

    def passing() -> Iterator[FloatArray]:
        row = 0
        for block in blocks:
            check_values(block, (*features, *targets), row, source)
            row += len(block)
            yield block

    return Table(source, features, targets, passing())


def pyarrow_part(part: str) -> tuple[Any, Any]:
    """pyarrow and one of its parts, imported when first needed (it is untyped and slow to load)."""
    return import_module("pyarrow"), import_module(f"pyarrow.{part}")


def one_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def from_arrow(batch: Any) -> FloatArray:
    """A pyarrow record batch of numbers as a block; missing values become nan."""
    pa, _ = pyarrow_part("types")
    block = np.empty((batch.num_rows, batch.num_columns), order="F")
    for j, column in enumerate(batch.columns):
        if column.type != pa.float64():
            column = column.cast(pa.float64(), safe=False)
        block[:, j] = column.to_numpy(zero_copy_only=False)
    return block
