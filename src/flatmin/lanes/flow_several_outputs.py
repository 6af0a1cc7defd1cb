"""The derivatives of gradient flow with r outputs, kept as matrices.

With P = W_L...W_1, B_L = I, B_{k-1} = B_k W_k, C_1 = 2 (P - P*) Sigma and C_{k+1} = C_k W_k' the
flow is

    dW_k/dt = -B_k' C_k                              excess risk tr((P - P*) Sigma (P - P*)')

The weights of a stage are formed. A layer's derivatives have rank r: from factors, as with one
output, every earlier stage would cost 4 d r^2, and its matrix costs d^2.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from flatmin.lanes.algebra import input_gradient
from flatmin.lanes.compiling import helper, inlined
from flatmin.lanes.flow import Slopes, integrator
from flatmin.lanes.tableau import COEFFICIENTS, COUNTS, SIZE, STAGES
from flatmin.lanes.tiles import in_threes, in_twos, outer, put, take, zeros


def _block(rows: int, columns: int) -> Any:
    numbers = rows * columns

    @inlined
    def tile(m, down, along, x, below, beside, terms, y, width):
        total = zeros(y, numbers)
        for e in range(terms):
            left, right = take(m[e * along :], rows, down), take(x[e * below :], columns, beside)
            total = outer(left, right, total)
        put(y, width, total, columns)

    return tile


def _columns(rows: int) -> Any:
    some = in_threes(lambda columns: _block(rows, columns))

    @inlined
    def tile(m, down, along, x, below, beside, terms, y, width):
        j = 0
        while j < width:
            right = x[j * beside :]
            j += some(width - j, m, down, along, right, below, beside, terms, y[j:], width)

    return tile


_some_rows = in_twos(_columns)


@helper
def _product(m, down, along, x, below, beside, terms, y, rows, columns):
    """Y_ij = sum_e M_ie X_ej with M_ie = m[i down + e along] and X_ej = x[e below + j beside]."""
    i = 0
    while i < rows:
        left, here = m[i * down :], y[i * columns :]
        i += _some_rows(rows - i, left, down, along, x, below, beside, terms, here, columns)


def _sums(count: int) -> Any:
    @inlined
    def tile(w, slopes, size, stages, factors, used, y):
        total = take(w, count, 1)
        for m in range(used):
            total = outer(take(slopes[stages[m] * size :], count, 1), factors[m], total)
        put(y, 1, total)

    return tile


_some_sums = in_threes(_sums)


@inlined
def _numbers(network):
    layout = network.layout
    size, signals = layout.layers[-1], len(network.target) * layout.nodes[-1]
    return (SIZE + 1) * size + 2 * signals + SIZE


@helper
def _derive(w, network, slopes, s, step):
    """K_s = B_k' C_k of all layers; returns the excess risk there. `step` is -h."""
    widths, layers, nodes = network.layout
    depth, d, size, outputs = len(widths) - 1, widths[0], layers[-1], len(network.target)
    # After the slopes: 1, the factors of the stages, the weights of this stage, B and C.
    factors = slopes[SIZE * size + 1 :]
    there = factors[SIZE - 1 :]
    b = there[size:]
    c, slope = b[outputs * nodes[-1] :], slopes[s * size :]
    for m in range(COUNTS[s]):
        factors[m] = step * COEFFICIENTS[s, m]
    j = 0
    while j < size:
        stages, used = STAGES[s], COUNTS[s]
        j += _some_sums(size - j, w[j:], slopes[j:], size, stages, factors, used, there[j:])
    # B_{L-1} is the last layer, and so is its derivative C_L.
    for j in range(size - layers[depth - 1]):
        b[outputs * nodes[depth - 1] + j] = there[layers[depth - 1] + j]
    for k in range(depth - 2, -1, -1):
        rows, columns, above = widths[k + 1], widths[k], b[outputs * nodes[k + 1] :]
        layer, here = there[layers[k] :], b[outputs * nodes[k] :]
        _product(above, rows, 1, layer, columns, 1, rows, here, outputs, columns)
    excess = 0.0
    for i in range(outputs):
        error = b[i * d :]
        for j in range(d):
            error[j] = error[j] - network.target[i, j]
        excess = excess + input_gradient(network.sigma, error, c[i * d :])
    for k in range(depth - 1):
        rows, columns, above = widths[k + 1], widths[k], b[outputs * nodes[k + 1] :]
        here, up, layer = c[outputs * nodes[k] :], c[outputs * nodes[k + 1] :], there[layers[k] :]
        _product(above, 1, rows, here, columns, 1, outputs, slope[layers[k] :], rows, columns)
        _product(here, columns, 1, layer, 1, columns, columns, up, outputs, rows)
    for j in range(size - layers[depth - 1]):
        slope[layers[depth - 1] + j] = c[outputs * nodes[depth - 1] + j]
    slopes[SIZE * size] = 1.0
    return excess


@inlined
def _row(network, slopes, k, i):
    """Row i of layer k of K_s."""
    widths, layers, _ = network.layout
    return slopes[layers[k] + i * widths[k] :], layers[-1], slopes[SIZE * layers[-1] :], 0


flow = integrator(Slopes(_numbers, _derive, _row))
