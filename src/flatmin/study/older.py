"""Tables written by older versions of flatmin, in the words of this one.

Version 1 had three states: `converged` is today's `settled`, and of a run that used up its steps it
knew no more than that. It had no word on learning, and took the edge of stability of runs at rest.
"""

from __future__ import annotations

from typing import Any

import pyarrow
import pyarrow.compute

from flatmin.study.schema import ROWS_SCHEMA

pa: Any = pyarrow
pc: Any = pyarrow.compute

_STATES = {"converged": "settled"}


def words(state: str) -> str:
    """The state of a run in the words of this version.

    >>> words("converged"), words("diverged")
    ('settled', 'diverged')
    """
    return _STATES.get(state, state)


def upgraded(table: Any) -> Any:
    """A shard's table of runs or traces as this version would have written it, as far as known."""
    if "state" not in table.column_names or "edge_share" in table.column_names:
        return table
    state = pa.array([words(one) for one in table["state"].to_pylist()])
    resting = pc.equal(state, "settled")
    share = pc.if_else(resting, pc.divide(table["sharpness"], table["edge"]), None)
    known = {name: table[name] for name in table.column_names} | {
        "state": state,
        "learned": pc.if_else(resting, True, pa.scalar(None, pa.bool_())),
        "edge_share": share,
    }
    rows = len(table)
    columns = [known.get(field.name, pa.nulls(rows, field.type)) for field in ROWS_SCHEMA]
    return pa.table(columns, names=ROWS_SCHEMA.names).replace_schema_metadata(table.schema.metadata)
