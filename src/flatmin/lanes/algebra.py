"""Products and sums over lane vectors, shared by the compiled kernels.

Rows of a matrix are taken two at a time: one row leaves the arithmetic units waiting for loads,
more than two spill registers (measured at d = 5, 20 and 64).
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from flatmin.lanes.compiling import helper, inlined, shared
from flatmin.lanes.vectors import fma, inner, outer, put, scaled, take, where, zeros


@inlined
def piece(left):
    """How many of what is left come next, three if that leaves none alone."""
    if left == 3 or left > 4:
        return 3
    return 2 if left >= 2 else 1


def _transposed_rows(rows: int) -> Any:
    @inlined
    def tile(w, columns, x, y, add):
        part = take(x, rows, 1)
        if add:
            for j in range(columns):
                y[j] = inner(take(w[j:], rows, columns), part, y[j])
        else:
            for j in range(columns):
                y[j] = inner(take(w[j:], rows, columns), part, 0.0)

    return tile


_two_transposed, _one_transposed = _transposed_rows(2), _transposed_rows(1)


@inlined
def transposed_times(w, rows, columns, x, y, add):
    """y = W' x, or y += W' x if `add`."""
    for i in range(0, rows, 2):
        if rows - i >= 2:
            _two_transposed(w[i * columns :], columns, x[i:], y, add or i > 0)
        else:
            _one_transposed(w[i * columns :], columns, x[i:], y, add or i > 0)


def _rows(rows: int) -> Any:
    @inlined
    def tile(w, columns, x, y):
        total = take(y, rows, 1)
        for j in range(columns):
            total = outer(take(w[j:], rows, columns), x[j], total)
        put(y, 1, total)

    return tile


_two_rows, _one_row = _rows(2), _rows(1)


@inlined
def add_times(w, rows, columns, x, y):
    """y += W x."""
    for i in range(0, rows, 2):
        if rows - i >= 2:
            _two_rows(w[i * columns :], columns, x, y[i:])
        else:
            _one_row(w[i * columns :], columns, x, y[i:])


def _stepped_rows(rows: int) -> Any:
    @inlined
    def tile(w, columns, x, y, change):
        total = zeros(w, rows)
        for j in range(columns):
            old = take(w[j:], rows, columns)
            total = outer(old, x[j], total)
            put(w[j:], columns, outer(change, x[j], old))
        put(y, 1, total)

    return tile


_two_stepped, _one_stepped = _stepped_rows(2), _stepped_rows(1)


@inlined
def times_and_step(w, rows, columns, x, y, factor, b):
    """y = W x with the old W, and W += factor b x', in the same pass."""
    for i in range(0, rows, 2):
        if rows - i >= 2:
            _two_stepped(w[i * columns :], columns, x, y[i:], scaled(factor, take(b[i:], 2, 1)))
        else:
            _one_stepped(w[i * columns :], columns, x, y[i:], scaled(factor, take(b[i:], 1, 1)))


@inlined
def input_gradient(sigma, e, a):
    """a = 2 Sigma e for the matrix shared by all lanes; returns e' Sigma e."""
    excess = 0.0
    for i in range(sigma.shape[0]):
        total = 0.0
        for j in range(sigma.shape[0]):
            total = fma(sigma[i, j], e[j], total)
        excess = fma(total, e[i], excess)
        a[i] = total + total
    return excess


@inlined
def dot(x, y, size):
    """x.y, in two chains."""
    even = odd = 0.0
    for j in range(0, size, 2):
        even = fma(x[j], y[j], even)
        if size - j >= 2:
            odd = fma(x[j + 1], y[j + 1], odd)
    return even + odd


@helper
def gradient_square(a, b, layout):
    """|gradient|^2 = sum over layers of |b_k|^2 |a_k|^2."""
    widths, nodes = layout.widths, layout.nodes
    total = 0.0
    for k in range(len(widths) - 1):
        below, above = a[nodes[k] :], b[nodes[k + 1] :]
        total = fma(dot(below, below, widths[k]), dot(above, above, widths[k + 1]), total)
    return total


@inlined
def add_scaled(factor, x, y, size):
    """y += factor x."""
    for j in range(size):
        y[j] = fma(factor, x[j], y[j])


@inlined
def scale_into(factor, x, y, size):
    """y = factor x."""
    for j in range(size):
        y[j] = factor * x[j]


@shared
def larger(x, y):
    """max(x, y); y where x is not a number."""
    return where(x > y, x, y)


@shared
def smaller(x, y):
    """min(x, y); y where x is not a number."""
    return where(x < y, x, y)


@inlined
def widen(extremes, value):
    """The two vectors of `extremes` become the least and the largest with `value`."""
    extremes[0] = smaller(value, extremes[0])
    extremes[1] = larger(value, extremes[1])
