"""What every source becomes, and what is asked of its columns and values."""

from __future__ import annotations

import difflib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.checks import check_several, shown
from flatmin.core.errors import DataError
from flatmin.data.tables.labels import Labels

PathLike = str | os.PathLike[str]
Names = str | Sequence[str]

LARGEST = 1e140  # squares summed over all rows and columns must stay below 1.8e308
ROWS = 8192  # rows handled at a time: fast in cache, small in memory


# What the messages on values that are no numbers suggest.
MISSING_HINT = 'or say what to do: missing = "drop" or "mean"'
TEXT_HINT, DROP_HINT = "one_hot makes columns of it, drop leaves it out", "drop leaves it out"


@dataclass(frozen=True)
class Reading:
    """How a source is read: targets, features (None: all the others), columns to leave out, columns
    of categories, and whether a value may be missing (it is then nan)."""

    target: Names
    features: Names | None = None
    drop: Names = ()
    one_hot: Names = ()
    missing: bool = False


@dataclass(frozen=True)
class Choice:
    """The columns chosen of a source; those of the features that hold categories have `labels`."""

    features: tuple[str, ...]
    targets: tuple[str, ...]
    labels: Mapping[str, Labels] = field(default_factory=dict)
    missing: bool = False  # whether a value may be missing
    dropped: tuple[str, ...] = ()
    selected: int = 0  # features asked for, before any is dropped
    available: int = 0  # columns that could be features

    @property
    def names(self) -> tuple[str, ...]:
        """Features, then targets."""
        return (*self.features, *self.targets)

    def hint(self, name: str, categories: bool = True) -> str:
        """What can be done about a column that holds no numbers, but perhaps `categories`."""
        if name in self.targets:
            return "a target must be numbers"
        return TEXT_HINT if categories else DROP_HINT


@dataclass(frozen=True)
class Table:
    """The chosen columns of a source. Each call of `rows` is one pass over blocks of their values:
    features, then targets; a column with `labels` holds the numbers of its categories."""

    source: str
    choice: Choice
    rows: Callable[[], Iterator[Float]]


def choose_columns(
    source: str,
    names: Sequence[str],
    reading: Reading,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Choice:
    """The feature columns and the target columns.

    A name in `groups` stands for several columns, and so does a list with commas that is not the
    name of a column itself (targets are named one by one).

    >>> choice = choose_columns("data.csv", ["a", "b", "c", "y"], Reading("y", drop="a,c"))
    >>> choice.features, choice.targets
    (('b',), ('y',))
    """
    known = [name for name in names if name]
    present = set(known)
    if len(present) < len(known):
        name, times = Counter(known).most_common(1)[0]
        raise DataError(f"{source}: the column name {name!r} occurs {times} times")

    def columns(argument: str, name: str) -> Sequence[str]:
        if name in present:
            return [name]
        if groups and name in groups:
            return groups[name]
        if "," in name and argument != "target":
            parts = [part.strip() for part in name.split(",")]
            return [column for part in parts if part for column in columns(argument, part)]
        near = difflib.get_close_matches(name, [*known, *(groups or ())], 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        shown = ", ".join(known[:8]) + (f", ... ({len(known)})" if len(known) > 8 else "")
        raise DataError(f"{source}: no column {name!r} ({argument}); {hint}columns: {shown}")

    def expand(argument: str, asked: Names) -> tuple[str, ...]:
        found: list[str] = []
        several = "the name of a column or a list of names"
        for name in [asked] if isinstance(asked, str) else check_several(argument, asked, several):
            if not isinstance(name, str):
                raise DataError(f"{argument} {shown(name)} is not a name; expected text")
            found.extend(columns(argument, name))
        if len(set(found)) < len(found):
            name = Counter(found).most_common(1)[0][0]
            raise DataError(f"{source}: the {argument} {name!r} is given twice")
        return tuple(found)

    wanted = expand("target", reading.target)
    if not wanted:
        raise DataError(f"{source}: no target given; expected the name of a column")
    dropped, one_hot = expand("drop", reading.drop), expand("one-hot", reading.one_hot)
    for name in wanted:
        if name in dropped:
            raise DataError(f"{source}: the target {name!r} is also among the columns to drop")
        if name in one_hot:
            raise DataError(
                f"{source}: the target {name!r} cannot be one-hot; that is for features"
            )
    available = [name for name in known if name not in wanted]
    if reading.features is None:
        chosen: Sequence[str] = available
        if "" in names:
            raise DataError(
                f"{source}: column {list(names).index('') + 1} has no name; "
                "name it or list the features to use"
            )
    else:
        chosen = expand("feature", reading.features)
        for name in wanted:
            if name in chosen:
                raise DataError(f"{source}: the target {name!r} is also among the features")
    without = set(dropped)
    kept = tuple(name for name in chosen if name not in without)
    if not kept:
        raise DataError(f"{source}: no features left beside the target {', '.join(wanted)}")
    for name in one_hot:
        if name not in kept:
            raise DataError(f"{source}: the column {name!r} (one-hot) is not among the features")
    labels = {name: Labels(source, name) for name in one_hot}
    return Choice(kept, wanted, labels, reading.missing, dropped, len(chosen), len(available))


def check_values(
    block: Float, names: Sequence[str], first_row: int, source: str, missing: bool = False
) -> None:
    """Refuse the first value that is not finite or whose square overflows, by row and column."""
    if acceptable(block, missing):
        return
    wrong = ~(np.abs(block) <= LARGEST)
    row, column = np.argwhere(wrong & ~np.isnan(block) if missing else wrong)[0]
    where = f"{source}: column {names[column]!r}, row {first_row + row} (counting from 0)"
    raise DataError(f"{where} is {complaint(float(block[row, column]))}")


def acceptable(block: Float, missing: bool = False) -> bool:
    """Whether every value can be squared and summed; nan only where values may be missing."""
    if not block.size or (block.max() <= LARGEST and block.min() >= -LARGEST):
        return True
    return missing and not np.any(np.abs(block) > LARGEST)


def complaint(value: float) -> str:
    """What is wrong with a value that is not acceptable."""
    if math.isfinite(value):
        return f"{value:g}, beyond {LARGEST:g}: its square overflows; rescale the column"
    hint = f", {MISSING_HINT}" if math.isnan(value) else ""
    return f"{value}; every value must be a finite number{hint}"


def checked(source: str, choice: Choice, rows: Callable[[], Iterable[Float]]) -> Table:
    """A table whose blocks are checked as they pass."""

    def passing() -> Iterator[Float]:
        row = 0
        for block in rows():
            check_values(block, choice.names, row, source, choice.missing)
            row += len(block)
            yield block

    return Table(source, choice, passing)


def pyarrow_part(part: str) -> tuple[Any, Any]:
    """pyarrow and one of its parts, imported when first needed (it is untyped and slow to load)."""
    return import_module("pyarrow"), import_module(f"pyarrow.{part}")


def one_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def from_arrow(batch: Any, names: Sequence[str], labels: Mapping[str, Labels]) -> Float:
    """A pyarrow record batch as a block, its columns called `names`; missing values become nan."""
    pa, _ = pyarrow_part("types")
    block = np.empty((batch.num_rows, batch.num_columns), order="F")
    for j, (column, name) in enumerate(zip(batch.columns, names, strict=True)):
        if name in labels:
            encoded = column.dictionary_encode()
            places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            block[:, j] = labels[name].encode(encoded.dictionary.to_pylist(), places)
            continue
        if column.type != pa.float64():
            column = column.cast(pa.float64(), safe=False)
        # to_numpy imports pandas, which takes 0.2 s; only gaps need it.
        whole = column.null_count == 0
        block[:, j] = np.from_dlpack(column) if whole else column.to_numpy(zero_copy_only=False)
    return block
