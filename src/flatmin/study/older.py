"""Tables written by older versions of flatmin, in the words of this one.

Version 1 had three states: `converged` is today's `settled`, and of a run that used up its steps it
knew no more than that. It had no word on learning, took the edge of stability of runs at rest, and
called the excess risk of a trace `risk`.
"""

from __future__ import annotations

from typing import Any

import pyarrow
import pyarrow.compute

from flatmin.dynamics.recording import RENAMED

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
    if "state" not in table.column_names:
        return table.rename_columns([RENAMED.get(name, name) for name in table.column_names])
    if "edge_share" in table.column_names:
        return table
    state = pa.array([words(one) for one in table["state"].to_pylist()], pa.string())
    resting = pc.equal(state, "settled")
    share = pc.if_else(resting, pc.divide(table["sharpness"], table["edge"]), None)
    learned = pc.if_else(resting, True, pa.scalar(None, pa.bool_()))
    table = table.set_column(table.column_names.index("state"), "state", state)
    return table.append_column("learned", learned).append_column("edge_share", share)


def conformed(table: Any, schema: Any) -> Any:
    """An upgraded table with the columns of a schema; null for those it does not have."""
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(schema.names).cast(schema)
