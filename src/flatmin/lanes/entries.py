"""What kernels of descent record of a run on its way: entries of a trace.

Between two entries lie `every` steps, a stride. An entry holds what was measured at the weights
that its last step led to, the least and the largest excess risk, distance and gradient over the
steps of its stride, and, if asked for, the sharpness by Lanczos near the last eigenvector, at the
last `window` steps of the stride: at the edge of stability all of them may alternate from step to
step, which a value per stride would not show. All but the sharpness is at hand in the next step.
Nothing here touches the weights, so recording does not change a trajectory.

A start vector that follows one eigenvector does not notice when another overtakes it. So a fixed
random vector is added to the start at every PROBE_EVERY-th measurement if a layer has changed by a
thousandth since the last time, and now and then if none has. That finds others, but does not prove
that there are none: what is recorded is a value with its residual, without an interval.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flatmin.lanes.algebra import larger, smaller
from flatmin.lanes.compiling import inlined
from flatmin.lanes.tiles import put
from flatmin.lanes.vectors import fetch, vectors, where

PROBE_EVERY = 8

COLUMNS = (
    *("excess_risk", "distance", "gradient"),
    *("excess_risk_low", "excess_risk_high"),
    *("distance_low", "distance_high"),
    *("gradient_low", "gradient_high"),
)
"""What an entry holds of a lane, with the gradient squared."""

SHARPNESS_COLUMNS = (
    *("sharpness", "sharpness_residual", "sharpness_products"),
    *("sharpness_low", "sharpness_high"),
)
"""What it holds besides, if sharpness is asked for."""

PLAIN, SHARP = len(COLUMNS), len(SHARPNESS_COLUMNS)

TILE = 8
"""Vectors that are worked on at once where all of a long row are; rows are filled with zeros."""


@inlined
def in_tiles(size):
    """The size of a row in whole tiles."""
    return -(-size // TILE) * TILE


CHANGES, NUMBERS = 3, 14
"""What is kept to foresee an eigenvector: changes, and numbers beside."""


def followed(nodes: int, depth: int) -> int:
    """How many numbers `following.follow` keeps of a run: the y_k of an eigenvector, as many as
    there are nodes, those foreseen of the next one, their last changes, what is known of these
    and of the eigenvalue, and a weight a layer."""
    return (2 + CHANGES) * (-(-nodes // TILE) * TILE) + NUMBERS + depth


class Rows(NamedTuple):
    """Where a block's entries go."""

    table: NDArray[Any]  # [column, entry, network]
    entry: int  # the first of these, and where they end
    end: int
    network: int  # the first lane; the others are its neighbours


class Spectrum(NamedTuple):
    """How sharpness is measured along a run."""

    starts: NDArray[Any]  # [block, number, n]: what `following.follow` keeps of a run, 0 at first
    probe: NDArray[Any]  # [d_0 + .. + d_{L-1}], of a small norm
    number: int  # of the first entry of a call in the whole run
    window: int  # measured at so many steps at the end of a stride; 0: not at all
    steady: bool  # whether measurements are the same number of steps apart
    tolerance: float
    max_products: int
    basis: int


@inlined
def rows_of(rows, network):
    """Where the entries of a block beside go, so many networks on."""
    return Rows(rows.table, rows.entry, rows.end, rows.network + network)


@inlined
def put_row(lanes, table, entry, network, row):
    """An entry of `Rows`, from its columns."""
    for column in range(len(table)):
        vectors(lanes, table[column, entry, network:])[0] = row[column]


@inlined
def fetch_row(lanes, table, entry, network):
    """Have the place of an entry brought near: each of its columns is far from the others."""
    for column in range(len(table)):
        fetch(vectors(lanes, table[column, entry, network:]))


@inlined
def put_entry(row, extremes, excess, distance, square, whole):
    """An entry of the lanes in `whole`, NaN in the others; the extremes begin anew."""
    put(row, 1, (excess, distance, square))
    for i in range(3):
        row[3 + 2 * i] = smaller(extremes[2 * i], row[i])
        row[4 + 2 * i] = larger(extremes[2 * i + 1], row[i])
        extremes[2 * i], extremes[2 * i + 1] = np.inf, -np.inf
    for i in range(PLAIN):
        row[i] = where(whole, row[i], np.nan)


@inlined
def put_sharpness(row, value, residual, products, low, high, whole):
    """The columns of sharpness, of the lanes in `whole`."""
    put(row, 1, (value, residual, products, low, high))
    for i in range(SHARP):
        row[i] = where(whole, row[i], np.nan)
