"""The records of a run as text: one row a record, numbers to their last digit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatmin.lab.engine import Piece


def csv_text(pieces: Sequence[Piece]) -> str:
    """Header and rows; the learning rate is that of the steps before the record."""
    names = list(pieces[0].columns)
    rows = [",".join([*names, "learning_rate"])]
    for piece in pieces:
        rate = "" if piece.rate is None else repr(piece.rate)
        columns = np.stack([piece.columns[name] for name in names], axis=1)
        for row in columns.tolist():
            words = [str(int(row[0])), *("" if v != v else repr(v) for v in row[1:])]
            rows.append(",".join([*words, rate]))
    return "\n".join(rows) + "\n"
