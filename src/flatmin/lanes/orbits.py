"""Long runs above the ceiling, a block of lanes at a time: rates that rise, orbits, tangents.

A step is that of `linear_descent`, here without a rule for stopping: a run above the ceiling never
arrives, and one that diverges stays in its lane as infinities. Beside the weights W a block may
carry a tangent V, which follows the derivative of the step,

    V <- V - eta H(W) V,    H V by the two sweeps of `curvature.linear`:
    x_L = 0,  x_{k-1} = W_k' x_k + V_k' b_k;   e_1 = 2 Sigma x_0,  e_{k+1} = W_k e_k + V_k a_k;
    layer k of H V is x_k a_k' + b_k e_k'.

A network above the ceiling follows a chain, W_k along b_k b_{k-1}' (`theory.oscillation`), and
tangents are kept among those of chains: every few steps V_1 becomes b b'V_1 and V_k, k >= 2, its
part along b_k b_{k-1}', with unit vectors b. (Turning hidden layers costs nothing, so that the
largest exponent of all tangents is never below 0 and hides whether an orbit is stable.) Then their
length is set back to 1: the mean logarithm of what it was, a step, tends to the largest Lyapunov
exponent of the chain. With one neuron a layer this is that of the network itself.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from flatmin.lanes.algebra import (
    add_scaled,
    add_times,
    dot,
    input_gradient,
    scale_into,
    smaller,
    sweep_backward,
    times_and_step,
    transposed_times,
)
from flatmin.lanes.compiling import compiled, helper
from flatmin.lanes.layout import scratch
from flatmin.lanes.tiles import put
from flatmin.lanes.vectors import absolute, fma, root, splat, vectors

# Steps between two times that tangents get length 1 again: no product overflows in so many.
RENEWED = 4
COLUMNS = ("gain", "excess", "pull", "inner", "stretch")
"""What is kept before every recorded step: g'w*, the excess risk, eta g'w, |b_1|^2, and the length
that tangents had grown to, 1 unless they got length 1 again; g is 2 Sigma (w - w*)."""


class Rising(NamedTuple):
    """Rates of all lanes, `[block, lane]` each: that of step k is min(first + k slope, last)."""

    first: NDArray[Any]
    slope: NDArray[Any]
    last: NDArray[Any]


@helper
def _renew(v, layout, b, row):
    """Keep of the tangents the part among chains, at length 1; returns the length before."""
    widths, layers, nodes = layout
    for k in range(len(widths) - 1):
        rows, columns, layer = widths[k + 1], widths[k], v[layers[k] :]
        above, below = b[nodes[k + 1] :], b[nodes[k] :]
        transposed_times(layer, rows, columns, above, row, False)
        if k > 0:
            along = dot(row, below, columns) / dot(below, below, columns)
            scale_into(along, below, row, columns)
        square = dot(above, above, rows)
        for i in range(rows):
            scale_into(above[i] / square, row, layer[i * columns :], columns)
    length = root(dot(v, v, layers[-1]))
    scale_into(1.0 / length, v, v, layers[-1])
    return length


@helper
def follow_block(lanes, weights, tangents, network, first, slope, last, out, begin, steps, memory):
    """Take `steps` steps with one block.

    lanes      tuple of n numbers; only its length and type are used
    weights    flat weights of the block, changed in place; so are `tangents`, unless empty
    network    of `layout`;  first, slope, last: of `Rising`, of this block only
    out        [steps, quantity, n] with COLUMNS, or empty
    begin      steps taken before this call
    memory     for a, b, e and x, of nodes[-1] vectors each, and for two of d_0 .. d_L numbers
    """
    widths, layers, nodes = network.layout
    depth, d, size = len(widths) - 1, widths[0], nodes[-1]
    w, v, a = vectors(lanes, weights), vectors(lanes, tangents), vectors(lanes, memory)
    b, e, x, error, row = a[size:], a[2 * size :], a[3 * size :], a[4 * size :], a[5 * size :]
    rate, rise, top = vectors(lanes, first)[0], vectors(lanes, slope)[0], vectors(lanes, last)[0]
    carried = len(tangents) > 0
    for step in range(steps):
        eta, stretch = smaller(fma(begin + step, rise, rate), top), splat(lanes, 1.0)
        sweep_backward(w, network, b)
        for j in range(d):
            error[j] = b[j] - network.target[j]
        excess = absolute(input_gradient(network.sigma, error, a))
        if carried:
            if (begin + step) % RENEWED == 0:
                stretch = _renew(v, network.layout, b, row)
            for k in range(depth - 1, -1, -1):
                rows, columns, below = widths[k + 1], widths[k], x[nodes[k] :]
                transposed_times(w[layers[k] :], rows, columns, x[nodes[k + 1] :], below, False)
                transposed_times(v[layers[k] :], rows, columns, b[nodes[k + 1] :], below, True)
            input_gradient(network.sigma, x, e)
        if len(out) > 0:
            b_1 = b[nodes[1] :]
            gain, pull, inner = dot(a, network.target, d), dot(a, b, d), dot(b_1, b_1, widths[1])
            put(vectors(lanes, out[step]), 1, (gain, excess, eta * pull, inner, stretch))
        for k in range(depth):
            rows, columns, layer = widths[k + 1], widths[k], w[layers[k] :]
            here, above = a[nodes[k] :], b[nodes[k + 1] :]
            if carried:
                tangent, beside, ahead = v[layers[k] :], e[nodes[k] :], e[nodes[k + 1] :]
                times_and_step(tangent, rows, columns, here, ahead, -eta, x[nodes[k + 1] :])
                add_times(layer, rows, columns, beside, ahead)
                for i in range(rows):
                    add_scaled(-eta * above[i], beside, tangent[i * columns :], columns)
            times_and_step(layer, rows, columns, here, a[nodes[k + 1] :], -eta, above)


@compiled
def follow(lanes, weights, tangents, network, rates, out, begin, steps, block):
    """`follow_block` for one block: out [block, steps, quantity, n], tangents [block, P, n]."""
    memory = scratch(6 * network.layout.nodes[-1] * len(lanes), weights)
    follow_block(
        lanes, weights[block].reshape(-1), tangents[block].reshape(-1), network,
        rates.first[block], rates.slope[block], rates.last[block], out[block], begin, steps, memory,
    )  # fmt: skip
