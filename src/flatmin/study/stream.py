"""The tables of a study shard by shard: a few shards are in memory, however many there are.

A shard's rows are in the order of its runs, and its runs are a few spans of consecutive ones: where
each span begins is all that is kept of every shard, and is enough to put the rows of all of them
into the order of the plan and to see whether a run is there twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from flatmin.core.arrays import Whole
from flatmin.core.errors import DataError
from flatmin.study import shard_files
from flatmin.study.older import conformed

# Rows of one piece of a stream, which a Parquet file has as a group; bytes of shards kept at hand.
PIECE_ROWS = 1 << 17
_KEPT_BYTES = 1 << 27


class Stream:
    """The rows of some shards; what the shards have besides the schema is kept.

    With `several` a run has several rows, which stay in their order. The first time that all shards
    come by they are read as a whole and checked so, whatever columns are asked for.
    """

    def __init__(self, paths: Sequence[Path], schema: pa.Schema, several: bool = False) -> None:
        self.paths, self._several, self._checked = paths, several, False
        for field in (field for path in paths for field in shard_files.fields(path)):
            if field.name not in schema.names:
                schema = schema.append(field)
        self.schema = schema
        self._kept: OrderedDict[Path, pa.Table] = OrderedDict()

    def __len__(self) -> int:
        return len(self.paths)

    def shards(self, columns: Collection[str] | None = None) -> Iterator[pa.Table]:
        """Every shard in any order, or some of its columns; at the end no run was there twice."""
        names = None if columns is None else {"run", *columns}
        if names and "state" in names:
            names |= set(shard_files.COUNTED)  # from which older states are told
        fields = [field for field in self.schema if names is None or field.name in names]
        spans = []
        for path in self.paths:
            table = _read(path, names if self._checked else None)
            spans.append(self._spans(table))
            yield conformed(table, pa.schema(fields, self.schema.metadata))
        self._in_order(spans)
        self._checked = True

    def pieces(self) -> Iterator[pa.Table]:
        """All rows in the order of their runs, at most `PIECE_ROWS` of them at once; at least one
        piece, which may be empty."""
        held: list[pa.Table] = [self.schema.empty_table()]
        count = 0
        for _, _, begin, length, shard in self.spans().tolist():
            at, end = begin, begin + length
            while at < end:
                taken = min(end - at, PIECE_ROWS - count)
                held.append(self.shard(shard).slice(at, taken))
                at, count = at + taken, count + taken
                if count == PIECE_ROWS:
                    yield pa.concat_tables(held).combine_chunks()
                    held, count = [], 0
        if held:
            yield pa.concat_tables(held).combine_chunks()

    def spans(self) -> Whole:
        """Where consecutive runs are, by run: first and last, first row, rows, number of shard."""
        return self._in_order([self._spans(_read(path, ["run"])) for path in self.paths])

    def _in_order(self, spans: Sequence[Whole]) -> Whole:
        """The spans of all shards by run, with the number of their shard."""
        if not spans:
            return np.empty((0, 5), dtype=np.int64)
        numbers = np.repeat(np.arange(len(spans)), [len(one) for one in spans])
        every = np.column_stack([np.concatenate(spans), numbers])
        every = every[np.argsort(every[:, 0], kind="stable")]
        if np.any(every[1:, 0] <= every[:-1, 1]):
            raise DataError(
                f"{str(self.paths[0].parent)!r} holds a run twice: it is not as it was written"
            )
        return every

    def shard(self, number: int) -> pa.Table:
        """A shard's table; the ones used last are at hand."""
        path = self.paths[number]
        table = self._kept.pop(path, None)
        if table is None:
            table = self.read(number)
            while self._kept and table.nbytes + sum(t.nbytes for t in self._kept.values()) > (
                _KEPT_BYTES
            ):
                self._kept.popitem(last=False)
        self._kept[path] = table
        return table

    def read(self, number: int) -> pa.Table:
        """A shard's table, for who needs it once."""
        return conformed(_read(self.paths[number]), self.schema)

    def _spans(self, table: pa.Table) -> Whole:
        """Where consecutive runs are: first and last run, first row, number of rows."""
        runs = table["run"].to_numpy()
        if not len(runs):
            return np.empty((0, 4), dtype=np.int64)
        steps = np.diff(runs)
        apart = (steps != 1) & ((steps != 0) | (not self._several))
        begins = np.concatenate([[0], 1 + np.flatnonzero(apart)])
        ends = np.append(begins[1:], len(runs))
        return np.column_stack([runs[begins], runs[ends - 1], begins, ends - begins])


def _read(path: Path, columns: Collection[str] | None = None) -> pa.Table:
    """A shard's table, or some of its columns, by run."""
    table = shard_files.read(path, columns)
    in_order = not np.any(np.diff(table["run"].to_numpy()) < 0)
    return table if in_order else table.sort_by("run")
