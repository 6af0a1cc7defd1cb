"""Products with the Hessian of linear networks with one output: a sweep down the layers, one up.

With b_k and a_k of `curvature.linear` every eigenvector is V_k = x_k a_k' + b_k y_k', and x_L = 0.
As (x + s b_k, y - s a_k) is the same V, x_k is taken orthogonal to b_k. With beta_k = |b_k|^2 and
alpha_k = |a_k|^2 then <V, V'> = sum_k alpha_k x.x' + beta_k y.y', and H V is

    c_{L-1} = beta_L y_L,  c_{k-1} = W_k' c_k + beta_k y_k
    e_1 = 2 Sigma c_0,     e_{k+1} = W_k e_k + alpha_k x_k + (y_k.a_k) b_k
    x = c_k - m_k b_k,     y = e_k + m_k a_k,     m_k = c_k.b_k/beta_k

No unit vectors are needed: where a_k is rounding noise, as at the end of training, x_k has no
weight, but stays put.

H V has x_k of y alone. So of an eigenvector x_k follows from y_k and the eigenvalue (`down`).

Coordinates lie as y_1, .., y_L, x_1, .., x_{L-1}. H is divided by a scale, about its largest
eigenvalue, and so are alpha_k, beta_k and with them all <V, V'>: so no power of H leaves the range
of numbers. Small square layers are swept in registers, as in `held`, with the same bits.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any, NamedTuple

from numba import extending

from flatmin.lanes.algebra import add_times, input_gradient, transposed_times
from flatmin.lanes.compiling import inlined
from flatmin.lanes.held import held, product_held, times_held, transposed_held
from flatmin.lanes.lanczos import inverse_or_zero
from flatmin.lanes.layout import Held, is_form
from flatmin.lanes.tiles import inner, minus, outer, put, scaled
from flatmin.lanes.vectors import fma, splat

overload: Any = extending.overload


class Nodes(NamedTuple):
    """What a product needs of the weights; the last four have a vector a layer."""

    a: Any  # a_k and b_k, as `layout` has nodes
    b: Any
    c: Any  # scratch of the size of a
    inverse: Any  # of the scale
    alpha: Any
    beta: Any
    per_b: Any  # 1/|b_k|^2, not scaled; 0 where b_k = 0
    moved: Any  # scratch: m_k


@inlined
def dimension(layout):
    """The number of coordinates."""
    return 2 * layout.nodes[-2] - layout.widths[0]


@inlined
def coordinates(layout, k):
    """Where the coordinates y_k and x_k of a layer begin."""
    return layout.nodes[k], layout.nodes[-2] + layout.nodes[k + 1] - layout.widths[0]


@inlined
def chain(x, y, size):
    """x.y, term by term: in the order of `tiles.inner`."""
    total = 0.0
    for j in range(size):
        total = fma(x[j], y[j], total)
    return total


@inlined
def rise(w, network, a):
    """All a_k from a_1."""
    widths, layers, nodes = network.layout
    for k in range(len(widths) - 2):
        above = a[nodes[k + 1] :]
        for i in range(widths[k + 1]):
            above[i] = 0.0
        add_times(w[layers[k] :], widths[k + 1], widths[k], a[nodes[k] :], above)


@inlined
def weigh(network, nodes_of):
    """alpha_k, beta_k and what goes with them."""
    widths, _, nodes = network.layout
    for k in range(len(widths) - 1):
        a_k, b_k = nodes_of.a[nodes[k] :], nodes_of.b[nodes[k + 1] :]
        square = chain(b_k, b_k, widths[k + 1])
        nodes_of.alpha[k] = nodes_of.inverse * chain(a_k, a_k, widths[k])
        nodes_of.beta[k] = nodes_of.inverse * square
        nodes_of.per_b[k] = inverse_or_zero(square)


@inlined
def _down(w, network, nodes_of, y, c):
    widths, layers, nodes = network.layout
    b, inverse, alpha, beta = nodes_of.b, nodes_of.inverse, nodes_of.alpha, nodes_of.beta
    per_b, moved, last = nodes_of.per_b, nodes_of.moved, len(widths) - 2
    p = b[nodes[last + 1] :]
    beta[last] = inverse * chain(p, p, widths[last + 1])
    of_y = 0.0
    for k in range(last, -1, -1):
        rows, columns, at = widths[k + 1], widths[k], nodes[k]
        y_k, c_k, below = y[at:], c[nodes[k + 1] :], c[at:]
        if k < last:
            b_k = b[nodes[k + 1] :]
            square, along = chain(b_k, b_k, rows), chain(c_k, b_k, rows)
            beta[k], per_b[k] = inverse * square, inverse_or_zero(square)
            moved[k] = per_b[k] * along
            alpha[k] = fma(-moved[k], along, chain(c_k, c_k, rows))
        of_y = fma(beta[k], chain(y_k, y_k, columns), of_y)
        for j in range(columns):
            below[j] = beta[k] * y_k[j]
        if k < last:
            transposed_times(w[layers[k] :], rows, columns, c_k, below, True)
    return of_y


@inlined
def _up(w, network, nodes_of, y, c, of_y, out):
    widths, layers, nodes = network.layout
    a, b, e, inverse, alpha, beta, _, moved = nodes_of
    last, of_x = len(widths) - 2, 0.0
    crossed = size = of_x
    input_gradient(network.sigma, c, e)
    between = chain(c, e, widths[0])
    for k in range(last):
        rows, columns, at = widths[k + 1], widths[k], nodes[k]
        y_k, a_k, e_k, new = y[at:], a[at:], e[at:], out[at:]
        b_k, c_k, above = b[nodes[k + 1] :], c[nodes[k + 1] :], e[nodes[k + 1] :]
        for j in range(columns):
            new[j] = fma(a_k[j], moved[k], e_k[j] - y_k[j])
        size = fma(beta[k], chain(new, new, columns), size)
        x_x, y_a = alpha[k], chain(y_k, a_k, columns)
        alpha[k] = inverse * chain(a_k, a_k, columns)
        of_x = fma(alpha[k], x_x, of_x)
        crossed = fma(beta[k] * moved[k], y_a, crossed)
        part = fma(-alpha[k], moved[k], inverse * y_a)
        for i in range(rows):
            above[i] = fma(b_k[i], part, alpha[k] * c_k[i])
            a[nodes[k + 1] + i] = 0.0
        add_times(w[layers[k] :], rows, columns, e_k, above)
        add_times(w[layers[k] :], rows, columns, a_k, a[nodes[k + 1] :])
    y_k, a_k, e_k, new = y[nodes[last] :], a[nodes[last] :], e[nodes[last] :], out[nodes[last] :]
    for j in range(widths[last]):
        new[j] = e_k[j] - y_k[j]
    size = fma(beta[last], chain(new, new, widths[last]), size)
    alpha[last] = inverse * chain(a_k, a_k, widths[last])
    return of_y + of_x, between + of_x + (crossed + crossed) - of_y, size


@inlined
def leave(network, nodes_of, k, b_k, y_k, c, c_of, of_y):
    """What the way down keeps of a held layer with c_k; returns beta_k y_k as well."""
    inverse, nodes = nodes_of.inverse, network.layout.nodes
    square, along = inner(b_k, b_k, 0.0), inner(c, b_k, 0.0)
    beta, per = inverse * square, inverse_or_zero(square)
    move = per * along
    nodes_of.beta[k], nodes_of.per_b[k], nodes_of.moved[k] = beta, per, move
    nodes_of.alpha[k] = fma(-move, along, inner(c, c, 0.0))
    put(c_of[nodes[k + 1] :], 1, c)
    return fma(beta, inner(y_k, y_k, 0.0), of_y), scaled(beta, y_k)


@inlined
def leave_last(network, nodes_of, y_k):
    """As `leave`, of the last layer, below which c_k begins."""
    widths, nodes, last = (
        network.layout.widths,
        network.layout.nodes,
        len(network.layout.widths) - 2,
    )
    p = nodes_of.b[nodes[last + 1] :]
    beta = nodes_of.inverse * chain(p, p, widths[last + 1])
    nodes_of.beta[last] = beta
    return fma(beta, inner(y_k, y_k, 0.0), splat(beta, 0.0)), scaled(beta, y_k)


@inlined
def _down_held(w, network, nodes_of, y, c_of, like):
    _, layers, nodes = network.layout
    last = len(layers) - 2
    of_y, c = leave_last(network, nodes_of, held(y[nodes[last] :], like))
    for k in range(last - 1, -1, -1):
        b_k, y_k = held(nodes_of.b[nodes[k + 1] :], like), held(y[nodes[k] :], like)
        of_y, begun = leave(network, nodes_of, k, b_k, y_k, c, c_of, of_y)
        c = transposed_held(w[layers[k] :], c, begun)
    put(c_of, 1, c)
    return of_y


@inlined
def _up_held(w, network, nodes_of, y, c_of, of_y, out, like):
    _, layers, nodes = network.layout
    a, b, _, inverse, alpha, beta, _, moved = nodes_of
    last, of_x, c = len(layers) - 2, splat(inverse, 0.0), held(c_of, like)
    crossed = size = of_x
    e = scaled(2.0, times_held(network.sigma, c))
    between, a_k = inner(c, e, 0.0), held(a, like)
    for k in range(last):
        y_k, move = held(y[nodes[k] :], like), moved[k]
        b_k, c_k = held(b[nodes[k + 1] :], like), held(c_of[nodes[k + 1] :], like)
        new = outer(a_k, move, minus(e, y_k))
        put(out[nodes[k] :], 1, new)
        size = fma(beta[k], inner(new, new, 0.0), size)
        x_x, y_a = alpha[k], inner(y_k, a_k, 0.0)
        here = inverse * inner(a_k, a_k, 0.0)
        alpha[k] = here
        of_x = fma(here, x_x, of_x)
        crossed = fma(beta[k] * move, y_a, crossed)
        above = outer(b_k, fma(-here, move, inverse * y_a), scaled(here, c_k))
        e = product_held(w[layers[k] :], e, above)
        a_k = product_held(w[layers[k] :], a_k, like)
        put(a[nodes[k + 1] :], 1, a_k)
    new = minus(e, held(y[nodes[last] :], like))
    put(out[nodes[last] :], 1, new)
    size = fma(beta[last], inner(new, new, 0.0), size)
    alpha[last] = inverse * inner(a_k, a_k, 0.0)
    return of_y + of_x, between + of_x + (crossed + crossed) - of_y, size


@inlined
def _x_of(network, nodes_of, c, x):
    nodes = network.layout.nodes
    for k in range(len(nodes) - 3):
        for i in range(nodes[k + 1], nodes[k + 2]):
            x[i - nodes[1]] = fma(nodes_of.b[i], -nodes_of.moved[k], c[i])


@inlined
def _x_of_held(network, nodes_of, c, x, like):
    nodes = network.layout.nodes
    for k in range(len(nodes) - 3):
        at = nodes[k + 1]
        b_k, c_k = held(nodes_of.b[at:], like), held(c[at:], like)
        put(x[at - nodes[1] :], 1, outer(b_k, -nodes_of.moved[k], c_k))


@inlined
def _sweep(w, network, nodes_of, q, shift, out):
    widths, layers, nodes = network.layout
    a, b, c, inverse, alpha, beta, per_b, moved = nodes_of
    last = len(widths) - 2
    y_at, _ = coordinates(network.layout, last)
    for j in range(widths[last]):
        c[nodes[last] + j] = beta[last] * q[y_at + j]
    own = between = size = 0.0
    moved[last] = 0.0
    for k in range(last - 1, -1, -1):
        rows, columns, b_k = widths[k + 1], widths[k], b[nodes[k + 1] :]
        y_at, x_at = coordinates(network.layout, k)
        y, x, x_out, c_k, below = q[y_at:], q[x_at:], out[x_at:], c[nodes[k + 1] :], c[nodes[k] :]
        move = per_b[k] * chain(c_k, b_k, rows)
        moved[k] = move
        first = second = third = 0.0
        for i in range(rows):
            old = x[i]
            new = fma(b_k[i], -move, fma(old, -shift, c_k[i]))
            first = fma(old, old, first)
            second = fma(old, new, second)
            third = fma(new, new, third)
            x_out[i] = new
        own = fma(alpha[k], first, own)
        between = fma(alpha[k], second, between)
        size = fma(alpha[k], third, size)
        for j in range(columns):
            below[j] = beta[k] * y[j]
        transposed_times(w[layers[k] :], rows, columns, c_k, below, True)
    # c_0 is read before e_1 takes its place
    input_gradient(network.sigma, c, out)
    for j in range(widths[0]):
        c[j] = out[j]
    for k in range(last + 1):
        rows, columns, a_k, b_k = widths[k + 1], widths[k], a[nodes[k] :], b[nodes[k + 1] :]
        y_at, x_at = coordinates(network.layout, k)
        y, x, y_out, e_k, above = q[y_at:], q[x_at:], out[y_at:], c[nodes[k] :], c[nodes[k + 1] :]
        first = second = third = y_a = 0.0
        for j in range(columns):
            old = y[j]
            new = fma(a_k[j], moved[k], fma(old, -shift, e_k[j]))
            first = fma(old, old, first)
            second = fma(old, new, second)
            third = fma(new, new, third)
            y_a = fma(old, a_k[j], y_a)
            y_out[j] = new
        own = fma(beta[k], first, own)
        between = fma(beta[k], second, between)
        size = fma(beta[k], third, size)
        if k < last:
            along = inverse * y_a
            for i in range(rows):
                above[i] = fma(b_k[i], along, alpha[k] * x[i])
            add_times(w[layers[k] :], rows, columns, e_k, above)
    return own, between, size


@inlined
def _sweep_held(w, network, nodes_of, q, shift, out, like):
    _, layers, nodes = network.layout
    a, b, _, inverse, alpha, beta, per_b, moved = nodes_of
    d, last, less = len(like), len(layers) - 2, -shift
    of_x, x_of_out = q[d * (last + 1) :], out[d * (last + 1) :]
    c = scaled(beta[last], held(q[d * last :], like))
    own = between = size = splat(shift, 0.0)
    for k in range(last - 1, -1, -1):
        y, x, b_k = held(q[d * k :], like), held(of_x[d * k :], like), held(b[nodes[k + 1] :], like)
        move = per_b[k] * inner(c, b_k, 0.0)
        moved[k] = move
        x_out = outer(b_k, -move, outer(x, less, c))
        put(x_of_out[d * k :], 1, x_out)
        own = fma(alpha[k], inner(x, x, 0.0), own)
        between = fma(alpha[k], inner(x, x_out, 0.0), between)
        size = fma(alpha[k], inner(x_out, x_out, 0.0), size)
        c = transposed_held(w[layers[k] :], c, scaled(beta[k], y))
    e = scaled(2.0, times_held(network.sigma, c))
    for k in range(last):
        y, a_k = held(q[d * k :], like), held(a[nodes[k] :], like)
        b_k = held(b[nodes[k + 1] :], like)
        y_out = outer(a_k, moved[k], outer(y, less, e))
        put(out[d * k :], 1, y_out)
        own = fma(beta[k], inner(y, y, 0.0), own)
        between = fma(beta[k], inner(y, y_out, 0.0), between)
        size = fma(beta[k], inner(y_out, y_out, 0.0), size)
        along = inverse * inner(y, a_k, 0.0)
        above = outer(b_k, along, scaled(alpha[k], held(of_x[d * k :], like)))
        e = product_held(w[layers[k] :], e, above)
    y = held(q[d * last :], like)
    y_out = outer(y, less, e)
    put(out[d * last :], 1, y_out)
    own = fma(beta[last], inner(y, y, 0.0), own)
    between = fma(beta[last], inner(y, y_out, 0.0), between)
    size = fma(beta[last], inner(y_out, y_out, 0.0), size)
    return own, between, size


def down(w, network, nodes_of, y, c, form):
    """The way down of the product with q of which only the y_k are given: x_k is taken for which
    (H q)_x = x.

    Here y has y_k, and c has c_k, where nodes are (`x_of` has x_k). On the way comes what `weigh`
    finds, but not alpha_k, in the place of which is |x_k|^2. Returns the sum of beta_k |y_k|^2.
    """


def up(w, network, nodes_of, y, c, of_y, out, form):
    """The way up after `down`, which returned `of_y`: nothing but y_k is left of H q - q, in `out`.

    On the way all a_k come from a_1, and alpha_k. Returns <q, q>, <q, out> and <out, out>, all of
    it scaled, where

        <q, H q> = c_0.e_1 + 2 sum_k alpha_k |x_k|^2 + m_k beta_k (y_k.a_k)

    as the sum of beta_k y_k.e_k = (c_{k-1} - W_k' c_k).e_k telescopes.
    """


def x_of(network, nodes_of, c, x, form):
    """The x_k of `down`, from its c."""


def sweep(w, network, nodes_of, q, shift, out, form):
    """out = H q - shift q; returns <q, q>, <q, out> and <out, out>, all of it scaled."""


@overload(down, jit_options={"forceinline": True})
def _any_down(w, network, nodes_of, y, c, form):
    if is_form(form, Held):
        return lambda w, network, nodes_of, y, c, form: _down_held(
            w, network, nodes_of, y, c, form.layer
        )
    return lambda w, network, nodes_of, y, c, form: _down(w, network, nodes_of, y, c)


@overload(up, jit_options={"forceinline": True})
def _any_up(w, network, nodes_of, y, c, of_y, out, form):
    if is_form(form, Held):
        return lambda w, network, nodes_of, y, c, of_y, out, form: _up_held(
            w, network, nodes_of, y, c, of_y, out, form.layer
        )
    return lambda w, network, nodes_of, y, c, of_y, out, form: _up(
        w, network, nodes_of, y, c, of_y, out
    )


@overload(x_of, jit_options={"forceinline": True})
def _any_x_of(network, nodes_of, c, x, form):
    if is_form(form, Held):
        return lambda network, nodes_of, c, x, form: _x_of_held(network, nodes_of, c, x, form.layer)
    return lambda network, nodes_of, c, x, form: _x_of(network, nodes_of, c, x)


@overload(sweep, jit_options={"forceinline": True})
def _any_sweep(w, network, nodes_of, q, shift, out, form):
    if is_form(form, Held):
        return lambda w, network, nodes_of, q, shift, out, form: _sweep_held(
            w, network, nodes_of, q, shift, out, form.layer
        )
    return lambda w, network, nodes_of, q, shift, out, form: _sweep(
        w, network, nodes_of, q, shift, out
    )
