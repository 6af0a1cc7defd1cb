"""The Parquet files of a shard: their names, their bytes, and whether one is whole and ours.

A file carries the hash of its study, the id of its shard, whether it holds runs or traces, how many
rows it has and a digest of each column (`digest`), checked whenever it is read. Its bytes depend on
the rows alone: fixed settings, no time, no host. Whoever writes into a study's folder may write
anything, so nothing in it is believed before it is checked, and nothing but a plain file is opened.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flatmin.core.errors import DataError
from flatmin.dynamics.edge import EDGE_SHARE
from flatmin.study import digest
from flatmin.study.older import conformed, upgraded

if TYPE_CHECKING:
    from flatmin.study.execute import ShardResult

RUNS, TRACES = "runs", "traces"  # the kinds of files, and the folders that they are in
EDGE = "edge of stability"
_NAME = re.compile(r"shard-([0-9a-zA-Z_-]+)\.parquet")
LEARNED = "learned"
_WITHOUT_DIGESTS = (b"1", b"2")  # versions of the tables
# What states are counted from.
COUNTED = ("state", "learned", "edge_share", "sharpness", "edge")


@dataclass(frozen=True)
class Packed:
    """A finished shard as the bytes of its files, with the number of runs in each state."""

    shard_id: str
    rows: bytes
    traces: bytes | None
    counts: dict[str, int]


def pack(study_hash: str, shard_id: str, result: ShardResult) -> Packed:
    """The files of a shard, ready to be written."""
    marks = {"flatmin_study": study_hash, "flatmin_shard": shard_id}
    marks["flatmin_traces"] = "no" if result.traces is None else "yes"
    traces = None if result.traces is None else _marked(result.traces, marks, TRACES)
    return Packed(shard_id, _marked(result.rows, marks, RUNS), traces, count_states(result.rows))


def _marked(table: pa.Table, marks: dict[str, str], kind: str) -> bytes:
    return encode(table, marks | {"flatmin_kind": kind} | digest.marks(table))


def encode(table: pa.Table, marks: dict[str, str] | None = None) -> bytes:
    """A table as a Parquet file, with marks added to its metadata."""
    metadata = dict(table.schema.metadata or {}) | {
        key.encode(): value.encode() for key, value in (marks or {}).items()
    }
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata(metadata).combine_chunks(),
        sink,
        compression="zstd",
        compression_level=3,
        write_page_checksum=True,
    )
    return bytes(sink.getvalue().to_pybytes())


def count_states(rows: pa.Table) -> dict[str, int]:
    """Runs by state, how many have learned, and how many ended at the edge of stability."""
    counts = {one["values"]: one["counts"] for one in pc.value_counts(rows["state"]).to_pylist()}
    at_edge = pc.sum(pc.greater_equal(rows["edge_share"], EDGE_SHARE)).as_py() or 0
    return counts | {LEARNED: pc.sum(rows["learned"]).as_py() or 0, EDGE: at_edge}


def shard_path(folder: Path, shard_id: str) -> Path:
    """Where a shard's file is."""
    return folder / f"shard-{shard_id}.parquet"


def shard_id(path: Path) -> str | None:
    """The shard a file is named after, if it is."""
    match = _NAME.fullmatch(path.name)
    return match[1] if match else None


def fault(path: Path, study_hash: str) -> str | None:
    """What is wrong with a shard's file as far as its end tells, if anything."""
    try:
        metadata = _metadata(path)
    except (pa.ArrowException, OSError, ValueError):
        return "is truncated or damaged"
    if metadata.get(b"flatmin_study") != study_hash.encode():
        return "belongs to another study"
    if metadata.get(b"flatmin_shard") != (shard_id(path) or "").encode():
        return "belongs to another shard"
    kind = metadata.get(b"flatmin_kind", path.parent.name.encode()).decode(errors="replace")
    return None if kind == path.parent.name else f"holds {kind}, not {path.parent.name}"


def deep_fault(path: Path, study_hash: str) -> str | None:
    """What is wrong with a shard's file, read as a whole."""
    if wrong := fault(path, study_hash):
        return wrong
    try:
        _checked(path, None)
    except _Damaged as damage:
        return str(damage)
    return None


def has_traces(path: Path) -> bool:
    """Whether a shard with these rows has traces too."""
    return _metadata(path).get(b"flatmin_traces") == b"yes"


def read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A shard's table, checked, in the words of this version."""
    try:
        return upgraded(_checked(path, columns))
    except _Damaged as damage:
        raise DataError(
            f"{str(path)!r} {damage}: run the study again, which puts it aside and replaces it"
        ) from None


class _Damaged(Exception):
    """A file that is not as it was written; the message goes after its name."""


def _checked(path: Path, columns: Sequence[str] | None) -> pa.Table:
    """The table of a file, or of some columns of it, checked against its own digests."""
    try:
        metadata = _metadata(path)
        known = None
        if columns is not None:
            known = [name for name in pq.read_schema(path).names if name in columns]
        table = pq.read_table(path, columns=known, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _Damaged(f"cannot be read ({reason})") from None
    older = metadata.get(b"flatmin_schema_version") in _WITHOUT_DIGESTS
    if older and digest.COLUMNS not in metadata:
        return table
    if wrong := digest.difference(table, metadata, part=columns is not None):
        raise _Damaged(wrong)
    return table


def _metadata(path: Path) -> dict[bytes, bytes]:
    """A file's own metadata; anything but a plain file could make a reader wait for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("not a plain file")
    return dict(pq.read_schema(path).metadata or {})


def gather(paths: list[Path], schema: pa.Schema) -> pa.Table:
    """The tables of several shards as one, by run; a run is in one shard and its records in order.

    The result does not depend on how the runs were split into shards. What the shards have besides
    the schema is kept.
    """
    if not paths:
        return schema.empty_table()
    found = [read(path) for path in paths]
    for field in (field for table in found for field in table.schema):
        if field.name not in schema.names:
            schema = schema.append(field)
    tables = [conformed(table, schema) for table in found]
    return pa.concat_tables(tables).sort_by("run").combine_chunks()
