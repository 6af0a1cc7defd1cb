"""Digests of a shard's columns: whether what is read is what was written.

A column's digest is that of its type, its count of rows, which of them are null, and its values as
bytes; a list's of its lengths and of the numbers in it. It depends on the content alone, not on how
Arrow or Parquet lay it out. Every column has its own, so that a table read in part is checked for
what was read. A digest finds damage and edits by hand; it does not prove who wrote a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

pa: Any = pyarrow
pc: Any = pyarrow.compute

ROWS, COLUMNS = b"flatmin_rows", b"flatmin_digests"


def known(kind: Any) -> bool:
    """Whether a type is one of those that tables of studies have."""
    if pa.types.is_list(kind):
        return bool(pa.types.is_float64(kind.value_type))
    tests = (pa.types.is_int64, pa.types.is_float64, pa.types.is_string, pa.types.is_boolean)
    return any(test(kind) for test in tests)


def marks(table: Any) -> dict[str, str]:
    """What a file's metadata says of its content."""
    digests = {name: digest(table[name]) for name in table.column_names}
    return {ROWS.decode(): str(table.num_rows), COLUMNS.decode(): json.dumps(digests)}


def digest(column: Any) -> str:
    """Of one column."""
    state = hashlib.blake2b(digest_size=16)
    _add(state, column)
    return state.hexdigest()


def _add(state: Any, array: Any) -> None:
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    # Parquet gives a list's items another name.
    kind = "list" if pa.types.is_list(array.type) else str(array.type)
    state.update(f"{kind} {len(array)};".encode())
    state.update(np.packbits(_flags(pc.is_null(array))).tobytes())
    if pa.types.is_list(array.type):
        _add(state, pc.fill_null(pc.list_value_length(array), -1))
        _add(state, pc.list_flatten(array))
    elif pa.types.is_string(array.type):
        words = array.fill_null("")
        _add(state, pc.binary_length(words))
        state.update("".join(words.to_pylist()).encode())
    elif pa.types.is_boolean(array.type):
        state.update(np.packbits(_flags(array.fill_null(False))).tobytes())
    else:
        state.update(np.ascontiguousarray(array.fill_null(0).to_numpy()).tobytes())


def _flags(array: Any) -> Any:
    return array.to_numpy(zero_copy_only=False).astype(bool)


def difference(table: Any, metadata: Mapping[bytes, bytes], part: bool) -> str | None:
    """What of a table is not as its file's metadata says; `part` allows for columns left out."""
    try:
        rows, digests = int(metadata[ROWS]), dict(json.loads(metadata[COLUMNS]))
    except (KeyError, ValueError, TypeError):
        return "carries no digests of its content"
    if table.num_rows != rows:
        return f"has {table.num_rows} rows where {rows} were written"
    names = set(table.column_names)
    if odd := names - set(digests):
        return f"has a column {min(odd)!r} that was not written"
    if not part and (lost := set(digests) - names):
        return f"lacks its column {min(lost)!r}"
    for name in table.column_names:
        if not known(table.schema.field(name).type):
            return f"has a column {name!r} of a type that is never written"
        if digest(table[name]) != digests[name]:
            return f"has other values in its column {name!r} than were written"
    return None
