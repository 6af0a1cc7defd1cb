"""The entries of a run as text: one row each, numbers to their last digit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatmin.lab.engine import Piece, follow, ground_of
from flatmin.lab.settings import from_address, setting_of
from flatmin.lab.tables import Tables


def replay(address: str, tables: Tables) -> str:
    """Those of the run that an address of the page shows."""
    content = from_address(address.rpartition("#")[2])
    own = {key: value for key, value in content.items() if key not in ("b", "view")}
    return csv_text(list(follow(ground_of(setting_of(own), tables))))


def csv_text(pieces: Sequence[Piece]) -> str:
    """Header and rows; the learning rate is that of the steps before the entry."""
    names = list(pieces[0].columns)
    rows = [",".join([*names, "learning_rate"])]
    for piece in pieces:
        rate = "" if piece.rate is None else repr(piece.rate)
        columns = np.stack([piece.columns[name] for name in names], axis=1)
        for row in columns.tolist():
            words = [str(int(row[0])), *("" if v != v else repr(v) for v in row[1:])]
            rows.append(",".join([*words, rate]))
    return "\n".join(rows) + "\n"
