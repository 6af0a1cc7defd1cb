"""Tables in arrays: X (n, d) and y (n,) or (n, m) as checked blocks [X Y]."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import Float
from flatmin.core.errors import DataError
from flatmin.data.tables.named import named_arrays_table
from flatmin.data.tables.table import Names, Reading, Table


def numbers(name: str, values: npt.ArrayLike) -> Float:
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"{name} has rows of unequal length; expected an array") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} is of type {array.dtype}; expected real numbers")
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=np.float64)


def column_names(
    pair: tuple[Float, Float], features: Names | None, target: Names | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names for the columns of X and y: those given, or x0 ... and y (y0 ... if several)."""
    X, y = pair
    if X.ndim != 2 or not X.shape[1]:
        raise DataError(f"X has shape {X.shape}; expected (n, d) with d at least 1")
    if y.ndim not in (1, 2) or y.shape[1:] == (0,):
        raise DataError(f"y has shape {y.shape}; expected (n,) or (n, m) with m at least 1")
    if len(X) != len(y):
        raise DataError(f"X has {len(X)} rows and y has {len(y)}; expected as many")
    d, m = X.shape[1], y.shape[1] if y.ndim == 2 else 1
    if target is None:
        target = "y" if m == 1 else [f"y{k}" for k in range(m)]
    if features is None:
        features = [f"x{j}" for j in range(d)]
    chosen, wanted = ((x,) if isinstance(x, str) else tuple(x) for x in (features, target))
    for argument, given, count in (("features", chosen, d), ("target", wanted, m)):
        if len(given) != count:
            raise DataError(f"{argument} has {len(given)} names; expected {count}, one per column")
    if len({*chosen, *wanted}) < d + m:
        raise DataError("features and target repeat a name; expected distinct names")
    return chosen, wanted


def array_table(X: npt.ArrayLike, y: npt.ArrayLike, reading: Reading) -> Table:
    """Arrays as a table; their columns are numbers, which may stand for categories.

    `reading` names the features and targets; without names (or targets) they are numbered.
    """
    pair = numbers("X", X), numbers("y", y)
    features, target = column_names(pair, reading.features, reading.target or None)
    values = (*pair[0].T, *np.atleast_2d(pair[1].T))
    columns = dict(zip((*features, *target), values, strict=True))
    reading = replace(reading, target=target, features=features)
    return named_arrays_table("the arrays", columns, reading)
