"""Compiled Lanczos for ensembles of small linear networks: one block of lanes at a time.

The mathematics is that of `linear` (range coordinates) and `lanczos`; here the network index is
innermost (see `flatmin.network.ensemble`), so one instruction works on several networks. Each lane
does the same arithmetic whatever its neighbours do, and a lane that has converged keeps the basis
size it had: results do not depend on the block. It exists because it is over ten times faster than
`lanczos` on an ensemble of 200 networks of d = 5, L = 10.

Buffers are flat; element e of a buffer of n lanes begins at index e n.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float, Whole
from flatmin.core.seeds import generator
from flatmin.lanes.algebra import (
    add_scaled,
    add_times,
    dot,
    scale_into,
    scaled_symmetric,
    transposed_times,
)
from flatmin.lanes.compiling import compiled, helper, inlined
from flatmin.lanes.vectors import (
    absolute,
    all_less,
    fma,
    load,
    minus,
    over,
    plus,
    root,
    splat,
    store,
    times,
    where_less,
)
from flatmin.network.architecture import Architecture

BASIS = 48
_EIGENVALUE_STEPS = 60
# Without reorthogonalisation Lanczos vectors lose orthogonality once the residual has fallen to
# about the root of the machine's precision; a looser tolerance is reached before that.
_LOOSE = 1e-7


def layout(architecture: Architecture) -> Whole:
    """Per layer: rows, columns, and where W_k, b_k, a_k and the coordinates (x, y) begin."""
    table, b, a, xy = [], architecture.inputs, 0, 0
    for (rows, columns), weights in zip(
        architecture.shapes, architecture.offsets[:-1], strict=True
    ):
        table.append((rows, columns, weights, b, a, xy))
        b, a, xy = b + rows, a + columns, xy + rows + columns
    return np.array(table, dtype=np.int64)


@inlined
def _inverse(zero, x):
    """1/x, or 0 where x is not positive."""
    one = splat(zero, 1.0)
    return where_less(zero, x, over(one, where_less(zero, x, x, one)), zero)


@helper
def frames(zero, n, w, table, sigma, w_star, p, b, a, a_norm, b_norm, scratch):
    """b_k, unit vectors of a_k (in place of a_k) and both norms, for one block of weights."""
    depth, d = table.shape[0], sigma.shape[0]
    for i in range(p.size):
        store(b, (table[depth - 1, 3] + i) * n, splat(zero, p[i]))
    for k in range(depth - 1, -1, -1):
        rows, columns, at, b_at = table[k, 0], table[k, 1], table[k, 2] * n, table[k, 3] * n
        transposed_times(zero, n, w, at, rows, columns, b, b_at, b, b_at - columns * n, False)
    for i in range(d):
        store(scratch, i * n, minus(load(zero, b, i * n), splat(zero, w_star[i])))
    scaled_symmetric(zero, n, sigma, 2.0, scratch, a, d)
    for k in range(depth - 1):
        rows, columns, at, a_at = table[k, 0], table[k, 1], table[k, 2] * n, table[k, 4] * n
        for i in range(rows):
            store(a, a_at + (columns + i) * n, zero)
        add_times(zero, n, w, at, rows, columns, a, a_at, a, a_at + columns * n)
    for k in range(depth):
        b_at, a_at = table[k, 3] * n, table[k, 4] * n
        store(b_norm, k * n, root(dot(zero, n, b, b_at, b, b_at, table[k, 0] * n)))
        norm = root(dot(zero, n, a, a_at, a, a_at, table[k, 1] * n))
        store(a_norm, k * n, norm)
        scale_into(zero, n, _inverse(zero, norm), a, a_at, a, a_at, table[k, 1] * n)


@helper
def product(zero, n, w, table, sigma, b, a, a_norm, b_norm, v, v_at, out, out_at, c, e):
    """out = H v in range coordinates. `a` holds unit vectors; `c` and `e` are scratch."""
    depth, d = table.shape[0], sigma.shape[0]
    # c_{k-1} = W_k' c_k + A (x.b_k) + |b_k| y, with c_L = 0
    for k in range(depth - 1, -1, -1):
        rows, columns, at = table[k, 0], table[k, 1], table[k, 2] * n
        b_at, a_at, x_at = table[k, 3] * n, table[k, 4] * n, v_at + table[k, 5] * n
        below, y_at = b_at - columns * n, x_at + rows * n
        along, size = dot(zero, n, v, x_at, b, b_at, rows * n), load(zero, b_norm, k * n)
        for j in range(0, columns * n, n):
            part = times(size, load(zero, v, y_at + j))
            store(c, below + j, fma(along, load(zero, a, a_at + j), part))
        if k < depth - 1:
            transposed_times(zero, n, w, at, rows, columns, c, b_at, c, below, True)
    # e_1 = 2 Sigma c_0
    scaled_symmetric(zero, n, sigma, 2.0, c, e, d)
    # x = |a_k| c_k + (e_k.A) b_k,  y = |b_k| (e_k - (e_k.A) A),  e_{k+1} = W_k e_k + |a_k| x
    for k in range(depth):
        rows, columns, at = table[k, 0], table[k, 1], table[k, 2] * n
        b_at, a_at, x_at = table[k, 3] * n, table[k, 4] * n, table[k, 5] * n
        above, y_at = a_at + columns * n, x_at + rows * n
        along = dot(zero, n, e, a_at, a, a_at, columns * n)
        back, size = minus(zero, along), load(zero, b_norm, k * n)
        for j in range(0, columns * n, n):
            rest = fma(back, load(zero, a, a_at + j), load(zero, e, a_at + j))
            store(out, out_at + y_at + j, times(size, rest))
        if k < depth - 1:
            norm = load(zero, a_norm, k * n)
            for i in range(0, rows * n, n):
                part = times(along, load(zero, b, b_at + i))
                store(out, out_at + x_at + i, fma(norm, load(zero, c, b_at + i), part))
                store(e, above + i, times(norm, load(zero, v, v_at + x_at + i)))
            add_times(zero, n, w, at, rows, columns, e, a_at, e, above)
        else:
            scale_into(zero, n, along, b, b_at, out, out_at + x_at, rows * n)


@helper
def top_of_tridiagonal(zero, n, alpha, beta, size, s):
    """Largest eigenvalue of each lane's size x size tridiagonal matrix; its unit vector into `s`.

    Pivots from the last row up, delta_m = theta - alpha_m and
    delta_i = theta - alpha_i - beta_i^2/delta_{i+1}, are all positive exactly when theta is above
    the largest eigenvalue, which is the root of the increasing concave function delta_1 beyond its
    last pole. With s_1 = 1 and s_{i+1} = s_i beta_i/delta_{i+1}, delta_1' = sum_i s_i^2, so
    Newton's step is a Rayleigh quotient. It is kept inside a bracket that begins with Gershgorin's
    bound; a lane that has arrived moves no more.
    """
    one, half, fine = splat(zero, 1.0), splat(zero, 0.5), splat(zero, 2e-15)
    low = high = load(zero, alpha, 0)
    for i in range(size):
        middle = load(zero, alpha, i * n)
        reach = middle
        if i > 0:
            reach = plus(reach, load(zero, beta, (i - 1) * n))
        if i < size - 1:
            reach = plus(reach, load(zero, beta, i * n))
        low = where_less(low, middle, middle, low)
        high = where_less(high, reach, reach, high)
    theta = high
    moving = one
    for _ in range(_EIGENVALUE_STEPS):
        pivot = minus(theta, load(zero, alpha, (size - 1) * n))
        least = one
        for i in range(size - 2, -1, -1):
            least = where_less(pivot, least, pivot, least)
            ratio = over(load(zero, beta, i * n), pivot)
            store(s, (i + 1) * n, ratio)  # s_{i+1}/s_i for now
            pivot = minus(
                minus(theta, load(zero, alpha, i * n)), times(load(zero, beta, i * n), ratio)
            )
        share = total = one
        for i in range(1, size):
            share = times(share, load(zero, s, i * n))
            total = fma(share, share, total)
        # Above the poles: the sign of delta_1 says on which side of the root theta is.
        right = where_less(zero, least, where_less(zero, pivot, one, zero), zero)
        high = where_less(zero, right, theta, high)
        low = where_less(zero, right, low, theta)
        # Arrived: Newton's step, or the bracket, is down to rounding.
        step, close = over(pivot, total), times(fine, absolute(theta))
        newton = where_less(zero, least, absolute(step), minus(high, low))
        moving = where_less(close, newton, where_less(close, minus(high, low), moving, zero), zero)
        trial = where_less(zero, least, minus(theta, step), low)
        inside = where_less(low, trial, where_less(trial, high, one, zero), zero)
        trial = where_less(zero, inside, trial, times(half, plus(low, high)))
        theta = where_less(zero, moving, trial, theta)
        if all_less(moving, half):
            break
    share = total = one
    store(s, 0, one)
    for i in range(1, size):
        share = times(share, load(zero, s, i * n))
        store(s, i * n, share)
        total = fma(share, share, total)
    scale = over(one, root(total))
    for i in range(size):
        store(s, i * n, times(scale, load(zero, s, i * n)))
    return theta


@inlined
def _enter(zero, n, table, a, b, b_norm, vector, q):
    """Range coordinates of X A' + B Y': x = X + (Y.A) B, y = Y - (Y.A) A.

    Between calls vectors are kept as (X, Y) with X orthogonal to B. At the end of training a_k is
    rounding noise whose direction A jumps, and X vanishes, so (X, Y) stays put where (x, y) jumps.
    """
    for k in range(table.shape[0]):
        rows, columns = table[k, 0] * n, table[k, 1] * n
        b_at, a_at, x_at = table[k, 3] * n, table[k, 4] * n, table[k, 5] * n
        y_at = x_at + rows
        along = dot(zero, n, vector, y_at, a, a_at, columns)
        unit, back = times(along, _inverse(zero, load(zero, b_norm, k * n))), minus(zero, along)
        for i in range(0, rows, n):
            store(q, x_at + i, fma(unit, load(zero, b, b_at + i), load(zero, vector, x_at + i)))
        for j in range(0, columns, n):
            store(q, y_at + j, fma(back, load(zero, a, a_at + j), load(zero, vector, y_at + j)))


@inlined
def _leave(zero, n, table, a, b, b_norm, vector):
    """The way back, in place: X = x - (x.B) B, Y = y + (x.B) A."""
    for k in range(table.shape[0]):
        rows, columns = table[k, 0] * n, table[k, 1] * n
        b_at, a_at, x_at = table[k, 3] * n, table[k, 4] * n, table[k, 5] * n
        inverse = _inverse(zero, load(zero, b_norm, k * n))
        along = times(dot(zero, n, vector, x_at, b, b_at, rows), inverse)
        add_scaled(zero, n, minus(zero, times(along, inverse)), b, b_at, vector, x_at, rows)
        add_scaled(zero, n, along, a, a_at, vector, x_at + rows, columns)


@inlined
def _normalise(zero, n, x, x_at, y, y_at, width):
    """y = x/|x|, or 0 where x is 0; returns |x|."""
    norm = root(dot(zero, n, x, x_at, x, x_at, width))
    scale_into(zero, n, _inverse(zero, norm), x, x_at, y, y_at, width)
    return norm


@helper
def block_sharpness(
    lanes, w, table, sigma, w_star, p, vector, tolerance, max_products, basis,
    value, residual, products,
):  # fmt: skip
    """Largest eigenvalue of each lane of one block, started from `vector`, which it replaces.

    lanes     tuple of n floats; only its length is used
    w         flat weights of the block; table as from `layout`
    vector    flat [dimension * n], as `_enter` takes it; need not be normalised or in the range
    basis     largest Krylov basis; a lane that fills it restarts from its Ritz vector
    value, residual, products   float64 [n], filled per lane
    """
    n, depth, width = len(lanes), table.shape[0], vector.size
    zero = splat(lanes, 0.0)
    outputs = (table[depth - 1, 3] + table[depth - 1, 0]) * n
    inputs = (table[depth - 1, 4] + table[depth - 1, 1]) * n
    b, c = np.empty(outputs), np.empty(outputs)
    a, e = np.empty(inputs), np.empty(inputs)
    a_norm, b_norm = np.empty(depth * n), np.empty(depth * n)
    q = np.empty((basis + 1) * width)
    alpha, beta, s = np.empty(basis * n), np.empty(basis * n), np.empty(basis * n)
    ritz = np.empty(basis * n)
    size = np.zeros(n, dtype=np.int64)  # basis size at which the lane stopped; 0: still going
    finished = np.zeros(n, dtype=np.bool_)
    error, top = np.empty(n), np.empty(n)
    frames(zero, n, w, table, sigma, w_star, p, b, a, a_norm, b_norm, e)
    for lane in range(n):
        products[lane] = 0.0
        finished[lane] = not np.isfinite(a_norm[lane])
        value[lane] = residual[lane] = np.nan
    while not finished.all():
        _enter(zero, n, table, a, b, b_norm, vector, q)
        _normalise(zero, n, q, 0, q, 0, width)
        for lane in range(n):
            size[lane] = 1 if finished[lane] else 0
        ritz[:] = 0.0
        for j in range(basis):
            here, there = j * width, (j + 1) * width
            product(
                zero, n, w, table, sigma, b, a, a_norm, b_norm, q, here, q, there, c, e
            )  # fmt: skip
            along = dot(zero, n, q, here, q, there, width)
            store(alpha, j * n, along)
            add_scaled(zero, n, minus(zero, along), q, here, q, there, width)
            if tolerance < _LOOSE:
                for i in range(j, -1, -1):
                    part = dot(zero, n, q, i * width, q, there, width)
                    add_scaled(zero, n, minus(zero, part), q, i * width, q, there, width)
            elif j > 0:
                part = load(zero, beta, (j - 1) * n)
                add_scaled(zero, n, minus(zero, part), q, here - width, q, there, width)
            norm = _normalise(zero, n, q, there, q, there, width)
            store(beta, j * n, norm)
            if j == 0:
                # The start vector may already be good enough: this is its own residual.
                store(top, 0, along)
                store(error, 0, norm)
                for lane in range(n):
                    if size[lane] == 0 and not error[lane] > tolerance * abs(top[lane]):
                        value[lane], residual[lane] = top[lane], error[lane]
                        products[lane] += 1.0
                        size[lane], finished[lane] = 1, True
                        for i in range(lane, width, n):
                            vector[i] = q[i]
                if finished.all():
                    break
            # A lane may stop at every second product, or when its basis is whole.
            last = j == basis - 1
            look = last or j % 2 == 1
            for lane in range(n):
                if size[lane] == 0:
                    spent = products[lane] + j + 2 >= max_products
                    look = look or spent or beta[j * n + lane] == 0.0
            if look:
                theta = top_of_tridiagonal(zero, n, alpha, beta, j + 1, s)
                store(error, 0, times(norm, absolute(load(zero, s, j * n))))
                store(top, 0, absolute(theta))
                going = False
                for lane in range(n):
                    if size[lane] > 0:
                        continue
                    spent = last or products[lane] + j + 2 >= max_products
                    due = j % 2 == 1 or beta[j * n + lane] == 0.0
                    if spent or (due and not error[lane] > 0.5 * tolerance * top[lane]):
                        size[lane] = j + 1
                        for i in range(j + 1):
                            ritz[i * n + lane] = s[i * n + lane]
                    going = going or size[lane] == 0
                if not going:
                    break
        if finished.all():
            break
        # Ritz vector of each lane, then its own value and residual.
        used = size.max()
        v_at = basis * width
        scale_into(zero, n, load(zero, ritz, 0), q, 0, q, v_at, width)
        for j in range(1, used):
            add_scaled(zero, n, load(zero, ritz, j * n), q, j * width, q, v_at, width)
        _normalise(zero, n, q, v_at, q, v_at, width)
        product(zero, n, w, table, sigma, b, a, a_norm, b_norm, q, v_at, q, 0, c, e)
        theta = dot(zero, n, q, v_at, q, 0, width)
        add_scaled(zero, n, minus(zero, theta), q, v_at, q, 0, width)
        store(top, 0, theta)
        store(error, 0, root(dot(zero, n, q, 0, q, 0, width)))
        for lane in range(n):
            if finished[lane]:
                continue
            value[lane], residual[lane] = top[lane], error[lane]
            products[lane] += size[lane] + 1
            for i in range(lane, width, n):
                vector[i] = q[v_at + i]
            close = not error[lane] > tolerance * abs(top[lane])
            finished[lane] = close or products[lane] >= max_products
    _leave(zero, n, table, a, b, b_norm, vector)


@compiled
def blocks_sharpness(
    lanes, weights, table, sigma, w_star, p, vectors, tolerance, max_products, basis,
    value, residual, products, first, last,
):  # fmt: skip
    """`block_sharpness` for blocks first..last-1 of an ensemble."""
    for block in range(first, last):
        block_sharpness(
            lanes, weights[block].reshape(-1), table, sigma, w_star, p, vectors[block].reshape(-1),
            tolerance, max_products, basis, value[block], residual[block], products[block],
        )  # fmt: skip


def start_vector(dimension: int) -> Float:
    """The same start for every network, so that results do not depend on its place."""
    vector: Float = generator(0, "lanczos start").standard_normal(dimension)
    return vector
