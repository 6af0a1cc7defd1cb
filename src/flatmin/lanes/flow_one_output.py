"""The derivatives of gradient flow with one output, kept as factors.

With b_L = p, b_{k-1} = W_k' b_k, w = b_0 and a_1 = 2 Sigma (w - w*), a_{k+1} = W_k a_k the flow is

    dW_k/dt = -b_k a_k'                                  excess risk (w - w*)' Sigma (w - w*)

The derivatives have rank one in every layer. The weights of a stage are never formed; with b_m, a_m
the factors of the earlier stages m,

    (W_k - h sum_m A_m b_m a_m')' x = W_k' x - h sum_m A_m (b_m . x) a_m

costs 4d per layer and earlier stage, for both directions, where forming them costs d^2. The factors
of stage s at node k begin at SIZE nodes[k] + s d_k.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from flatmin.lanes.algebra import input_gradient
from flatmin.lanes.compiling import helper, inlined
from flatmin.lanes.flow import Slopes, integrator
from flatmin.lanes.tableau import COEFFICIENTS, COUNTS, SIZE, STAGES
from flatmin.lanes.tiles import in_threes, outer, put, take, zeros
from flatmin.lanes.vectors import fma


@inlined
def _dot(x, y, size):
    """x.y, in one chain."""
    total = 0.0
    for e in range(size):
        total = fma(x[e], y[e], total)
    return total


def _entries(count: int) -> Any:
    @inlined
    def tile(w, across, along, x, ins, v, span, stages, used, dots, y):
        total = zeros(w, count)
        for e in range(ins):
            total = outer(take(w[e * along :], count, across), x[e], total)
        for m in range(used):
            total = outer(take(v[stages[m] * span :], count, 1), dots[m], total)
        put(y, 1, total)

    return tile


_some_entries = in_threes(_entries)


@helper
def _product(w, across, along, x, ins, v, y, outs, s, step, dots):
    """y_s = W x_s + step sum_m A_sm (x_m . x_s) v_m, m over the stages that s uses.

    Entry (o, e) of W, seen as the map from x to y, is w[o across + e along]; x, v and y begin with
    stage 0 of their node. The entries of y are taken in threes.
    """
    stages, used, x_s, y_s = STAGES[s], COUNTS[s], x[s * ins :], y[s * outs :]
    for m in range(used):
        dots[m] = step * COEFFICIENTS[s, m] * _dot(x_s, x[stages[m] * ins :], ins)
    o = 0
    while o < outs:
        row, rest = w[o * across :], outs - o
        o += _some_entries(
            rest, row, across, along, x_s, ins, v[o:], outs, stages, used, dots, y_s[o:]
        )


@inlined
def _numbers(network):
    return 2 * SIZE * network.layout.nodes[-1] + SIZE


@helper
def _derive(w, network, a, s, step):
    """The factors a_s, b_s of stage s of a step; returns its excess risk. `step` is -h."""
    widths, layers, nodes = network.layout
    depth, d = len(widths) - 1, widths[0]
    b, dots = a[SIZE * nodes[-1] :], a[2 * SIZE * nodes[-1] :]
    for i in range(widths[depth]):
        b[SIZE * nodes[depth] + s * widths[depth] + i] = network.p[i]
    for k in range(depth - 1, -1, -1):
        here, there = SIZE * nodes[k], SIZE * nodes[k + 1]
        rows, columns = widths[k + 1], widths[k]
        _product(
            w[layers[k] :], 1, columns, b[there:], rows, a[here:], b[here:], columns, s, step, dots
        )
    error = b[s * d :]
    for j in range(d):
        error[j] = error[j] - network.target[j]
    excess = input_gradient(network.sigma, error, a[s * d :])
    for k in range(depth - 1):
        here, there = SIZE * nodes[k], SIZE * nodes[k + 1]
        rows, columns = widths[k + 1], widths[k]
        _product(
            w[layers[k] :], columns, 1, a[here:], columns, b[there:], a[there:], rows, s, step, dots
        )
    return excess


@inlined
def _row(network, a, k, i):
    """Row i of layer k of K_s is b_s[i] a_s'."""
    widths, _, nodes = network.layout
    b = a[SIZE * (nodes[-1] + nodes[k + 1]) + i :]
    return a[SIZE * nodes[k] :], widths[k], b, widths[k + 1]


flow = integrator(Slopes(_numbers, _derive, _row))
