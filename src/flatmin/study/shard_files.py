"""The Parquet files of a shard: their names, their bytes, and whether one is whole and ours.

A file carries the hash of its study, the id of its shard, whether it holds runs or traces, how many
rows it has and a digest of each column (`digest`), checked whenever it is read. Its bytes depend on
the rows alone: fixed settings, no time, no host. Whoever writes into a study's folder may write
anything, so nothing in it is believed before it is checked, and nothing but a plain file is opened.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flatmin.core.errors import DataError
from flatmin.core.memory import check_memory
from flatmin.data.tables.table import one_line
from flatmin.dynamics.edge import EDGE_SHARE
from flatmin.study import digest
from flatmin.study.older import upgraded
from flatmin.study.schema import ROWS_SCHEMA, TRACES_SCHEMA, VERSION

if TYPE_CHECKING:
    from flatmin.study.execute import ShardResult

RUNS, TRACES = "runs", "traces"  # the kinds of files, and the folders that they are in
EDGE = "edge of stability"
_NAME = re.compile(r"shard-([0-9a-zA-Z_-]+)\.parquet")
LEARNED = "learned"
_SCHEMAS = {RUNS: ROWS_SCHEMA, TRACES: TRACES_SCHEMA}
_WITHOUT_DIGESTS = (b"1", b"2")  # versions of the tables
_VERSIONS = (*_WITHOUT_DIGESTS, VERSION.encode())
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
    return folder / file_name(shard_id)


def file_name(shard_id: str) -> str:
    """What a shard's file is called."""
    return f"shard-{shard_id}.parquet"


def shard_id(path: Path) -> str | None:
    """The shard a file is named after, if it is."""
    match = _NAME.fullmatch(path.name)
    return match[1] if match else None


def fault(path: Path, study_hash: str) -> str | None:
    """What is wrong with a shard's file as far as its end tells, if anything."""
    try:
        end = _end(path)
    except _Damaged as damage:
        return str(damage)
    metadata = end.marks
    if metadata.get(b"flatmin_study") != study_hash.encode():
        return "belongs to another study"
    if metadata.get(b"flatmin_shard") != (shard_id(path) or "").encode():
        return "belongs to another shard"
    kind = metadata.get(b"flatmin_kind", path.parent.name.encode()).decode(errors="replace")
    if kind != path.parent.name:
        return f"holds {kind[:20]}, not {path.parent.name}"
    if metadata.get(b"flatmin_schema_version") not in _VERSIONS:
        return "is written in a way that this version of flatmin does not know"
    written = metadata.get(digest.ROWS, b"%d" % end.rows)
    if written != b"%d" % end.rows:
        return f"has {end.rows} rows where {written[:20].decode(errors='replace')} were written"
    return None


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
    return _end(path).marks.get(b"flatmin_traces") == b"yes"


def row_count(path: Path) -> int:
    """Rows of a file, from its end."""
    return _end(path).rows


def fields(path: Path) -> list[pa.Field]:
    """The columns of a file in the words of this version."""
    try:
        return list(upgraded(_end(path).schema.empty_table()).schema)
    except (pa.ArrowException, KeyError):
        raise DataError(f"{str(path)!r} has columns of other types: run the study again") from None


def read(path: Path, columns: Collection[str] | None = None) -> pa.Table:
    """A shard's table, checked, in the words of this version."""
    try:
        return upgraded(_checked(path, columns))
    except _Damaged as damage:
        raise DataError(
            f"{str(path)!r} {damage}: run the study again, which puts it aside and replaces it"
        ) from None


class _Damaged(Exception):
    """A file that is not as it was written; the message goes after its name."""


def _checked(path: Path, columns: Collection[str] | None) -> pa.Table:
    """The table of a file, or of some columns of it, checked against its own digests."""
    end = _end(path)
    known = [n for n in end.schema.names if columns is None or n in columns]
    if len(set(known)) < len(known):
        raise _Damaged("has two columns of one name")
    try:
        check_memory("its table", 8.0 * end.rows * len(known))
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(columns=known)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _Damaged(f"cannot be read ({one_line(error)})") from None
    older = end.marks.get(b"flatmin_schema_version") in _WITHOUT_DIGESTS
    older = older and digest.COLUMNS not in end.marks
    wrong = None if older else digest.difference(table, end.marks, part=columns is not None)
    schema = _SCHEMAS.get(path.parent.name, ROWS_SCHEMA)
    wanted = {"run"} if older else set(schema.names)
    if wrong := wrong or _misfit(table, schema, wanted if columns is None else wanted & {*columns}):
        raise _Damaged(wrong)
    return table


def _misfit(table: pa.Table, schema: pa.Schema, wanted: set[str]) -> str | None:
    """What keeps a table from being one of this schema, whatever its digests say."""
    if lost := wanted - set(table.column_names):
        return f"lacks its column {min(lost)!r}"
    for field in table.schema:
        at = schema.get_field_index(field.name)
        fits = digest.known(field.type) if at < 0 else schema.field(at).type.equals(field.type)
        if not fits:
            return f"has a column {field.name!r} of another type"
    for name in ("run", "state"):
        if name in table.column_names and table[name].null_count:
            return f"has no {name} in some rows"
    return None


@dataclass(frozen=True)
class _End:
    """What stands at the end of a file."""

    marks: dict[bytes, bytes]
    rows: int
    schema: pa.Schema


def _end(path: Path) -> _End:
    """The end of a file; anything but a plain file could lead elsewhere or never end."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise _Damaged("is not a plain file")
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            return _End(dict(schema.metadata or {}), int(file.metadata.num_rows), schema)
    except FileNotFoundError:
        raise _Damaged("is missing") from None
    except (pa.ArrowException, OSError, ValueError):
        raise _Damaged("is truncated or damaged") from None
