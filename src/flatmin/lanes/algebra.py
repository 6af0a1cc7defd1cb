"""Products and sums over lane vectors, shared by the compiled kernels."""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from flatmin.lanes.compiling import helper, inlined
from flatmin.lanes.tiles import in_twos, inner, outer, put, scaled, take, zeros
from flatmin.lanes.vectors import fma, where


def _transposed(rows: int) -> Any:
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


def _added(rows: int) -> Any:
    @inlined
    def tile(w, columns, x, y):
        total = take(y, rows, 1)
        for j in range(columns):
            total = outer(take(w[j:], rows, columns), x[j], total)
        put(y, 1, total)

    return tile


def _stepped(rows: int) -> Any:
    @inlined
    def tile(w, columns, x, y, factor, b):
        change = scaled(factor, take(b, rows, 1))
        total = zeros(w, rows)
        for j in range(columns):
            old = take(w[j:], rows, columns)
            total = outer(old, x[j], total)
            put(w[j:], columns, outer(change, x[j], old))
        put(y, 1, total)

    return tile


_some_transposed, _some_added, _some_stepped = map(in_twos, (_transposed, _added, _stepped))


@inlined
def transposed_times(w, rows, columns, x, y, add):
    """y = W' x, or y += W' x if `add`."""
    i = 0
    while i < rows:
        i += _some_transposed(rows - i, w[i * columns :], columns, x[i:], y, add or i > 0)


@inlined
def add_times(w, rows, columns, x, y):
    """y += W x."""
    i = 0
    while i < rows:
        i += _some_added(rows - i, w[i * columns :], columns, x, y[i:])


@inlined
def times_and_step(w, rows, columns, x, y, factor, b):
    """y = W x with the old W, and W += factor b x', in the same pass."""
    i = 0
    while i < rows:
        i += _some_stepped(rows - i, w[i * columns :], columns, x, y[i:], factor, b[i:])


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
def sweep_backward(w, network, b):
    """b_L = p and b_{k-1} = W_k' b_k for all layers."""
    widths, layers, nodes = network.layout
    for i in range(len(network.p)):
        b[nodes[-2] + i] = network.p[i]
    for k in range(len(widths) - 2, -1, -1):
        here, below = b[nodes[k + 1] :], b[nodes[k] :]
        transposed_times(w[layers[k] :], widths[k + 1], widths[k], here, below, False)


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


@inlined
def larger(x, y):
    """max(x, y); y where x is not a number."""
    return where(x > y, x, y)


@inlined
def smaller(x, y):
    """min(x, y); y where x is not a number."""
    return where(x < y, x, y)


@inlined
def widen(extremes, value):
    """The two vectors of `extremes` become the least and the largest with `value`."""
    extremes[0] = smaller(value, extremes[0])
    extremes[1] = larger(value, extremes[1])
