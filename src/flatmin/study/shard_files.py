"""The Parquet files of a shard: their names, their bytes, and whether one is whole and ours.

A file carries the hash of its study and the id of its shard, and checksums of its pages. Its bytes
depend on the rows alone: fixed settings, no time, no host.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flatmin.core.errors import DataError
from flatmin.dynamics.edge import EDGE_SHARE
from flatmin.study.older import conformed, upgraded

if TYPE_CHECKING:
    from flatmin.study.execute import ShardResult

EDGE = "edge of stability"
_NAME = re.compile(r"shard-([0-9a-zA-Z_-]+)\.parquet")
LEARNED = "learned"
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
    marks = {
        "flatmin_study": study_hash,
        "flatmin_shard": shard_id,
        "flatmin_traces": "no" if result.traces is None else "yes",
    }
    traces = None if result.traces is None else encode(result.traces, marks)
    return Packed(shard_id, encode(result.rows, marks), traces, count_states(result.rows))


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
    """What is wrong with a shard's file, if anything; reads only its end."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return "is truncated or damaged"
    if metadata.get(b"flatmin_study") != study_hash.encode():
        return "belongs to another study"
    if metadata.get(b"flatmin_shard") != (shard_id(path) or "").encode():
        return "belongs to another shard"
    return None


def has_traces(path: Path) -> bool:
    """Whether a shard with these rows has traces too."""
    return bool((pq.read_schema(path).metadata or {}).get(b"flatmin_traces") == b"yes")


def read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A shard's table, its checksums verified, in the words of this version."""
    try:
        known = None
        if columns is not None:
            known = [name for name in pq.read_schema(path).names if name in columns]
        return upgraded(pq.read_table(path, columns=known, page_checksum_verification=True))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{str(path)!r} cannot be read ({reason}): delete it and run the study again"
        ) from None


def gather(paths: list[Path], schema: pa.Schema) -> pa.Table:
    """The tables of several shards as one, by run; a run is in one shard and its records in order.

    The result does not depend on how the runs were split into shards.
    """
    if not paths:
        return schema.empty_table()
    tables = [conformed(read(path), schema) for path in paths]
    return pa.concat_tables(tables).sort_by("run").combine_chunks()
