"""The interval of a sharpness, compiled: one block of lanes of linear networks with one output.

The mathematics is that of `flatmin.curvature.inertia` for one output, in double precision: a
Rayleigh quotient less its rounding from below, a factorisation of high I - H over the layers from
above, and the matrices E that carry the errors of b_k, a_k and c_k. The vector is that of
`sharpness`: V_k = x a_k' + b_k y' with the computed a_k and b_k, taken as exact.

Matrices are [row, column] in flat buffers; element e begins at index e n.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import numpy as np

from flatmin.lanes.algebra import add_times, dot, scale_into, scaled_symmetric, transposed_times
from flatmin.lanes.compiling import compiled, helper
from flatmin.lanes.vectors import (
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

_EPS = float(np.finfo(np.float64).eps)


# Not inlined: each is called in many places, a few times a layer.


@helper
def _dot(zero, n, x, x_at, y, y_at, width):
    return dot(zero, n, x, x_at, y, y_at, width)


@helper
def _norm(zero, n, x, at, count):
    return root(_dot(zero, n, x, at, x, at, count * n))


@helper
def _inverse(zero, x):
    """1/x, or 0 where x is not positive."""
    one = splat(zero, 1.0)
    return where_less(zero, x, over(one, where_less(zero, x, x, one)), zero)


@helper
def _added(zero, x, factor):
    return times(splat(zero, factor), x)


@helper
def congruence(zero, n, m, size, x, x_at, x_row, x_column, columns, half):
    """m = X' m X in place; X[i, j] begins at x_at + i x_row + j x_column. Returns |m X|^2."""
    square = zero
    for i in range(size):
        for j in range(columns):
            total = zero
            for k in range(size):
                here = x_at + k * x_row + j * x_column
                total = fma(load(zero, m, (i * size + k) * n), load(zero, x, here), total)
            store(half, (i * columns + j) * n, total)
            square = fma(total, total, square)
    for i in range(columns):
        for j in range(i + 1):
            total = zero
            for k in range(size):
                here = x_at + k * x_row + i * x_column
                total = fma(load(zero, x, here), load(zero, half, (k * columns + j) * n), total)
            store(m, (i * columns + j) * n, total)
            store(m, (j * columns + i) * n, total)
    return square


@helper
def spread(zero, n, depth, m, size, x, x_at, x_row, x_column, columns, added, half):
    """E = (1 + 1/depth) X'EX + (1 + depth) added^2 I; returns a bound on the error's norm."""
    congruence(zero, n, m, size, x, x_at, x_row, x_column, columns, half)
    scale_into(
        zero, n, splat(zero, 1.0 + 1.0 / depth), m, 0, m, 0, columns * columns * n
    )  # fmt: skip
    extra = times(splat(zero, 1.0 + depth), times(added, added))
    trace = zero
    for i in range(columns):
        here = i * (columns + 1) * n
        total = plus(load(zero, m, here), extra)
        store(m, here, total)
        trace = plus(trace, total)
    return times(splat(zero, 1.01), root(trace))


@helper
def errors(zero, n, w, table, sigma, w_star, p, b, a, w_norm, b_error, a_error, m, half, twice):
    """b_k and a_k with bounds on their errors, and the layers' norms."""
    depth, d = table.shape[0], sigma.shape[0]
    for i in range(p.size):
        store(b, (table[depth - 1, 3] + i) * n, splat(zero, p[i]))
    m[:] = 0.0
    error = zero
    for k in range(depth - 1, -1, -1):
        rows, columns, at, b_at = table[k, 0], table[k, 1], table[k, 2] * n, table[k, 3] * n
        store(b_error, k * n, error)
        size = _norm(zero, n, w, at, rows * columns)
        store(w_norm, k * n, size)
        added = _added(zero, times(size, _norm(zero, n, b, b_at, rows)), (rows + 4) * _EPS)
        transposed_times(zero, n, w, at, rows, columns, b, b_at, b, b_at - columns * n, False)
        error = spread(
            zero, n, depth + 1, m, rows, w, at, columns * n, n, columns, added, half
        )  # fmt: skip
    size = _norm(zero, n, b, 0, d)
    for i in range(d):
        store(half, i * n, minus(load(zero, b, i * n), splat(zero, w_star[i])))
    size = plus(size, _norm(zero, n, half, 0, d))
    scaled_symmetric(zero, n, sigma, 2.0, half, a, d)
    square = 0.0
    for i in range(d):
        for j in range(d):
            store(twice, (i * d + j) * n, splat(zero, 2.0 * sigma[i, j]))
            square += 4.0 * sigma[i, j] ** 2
    added = _added(zero, size, (d + 4) * _EPS * np.sqrt(square))
    error = spread(zero, n, depth + 1, m, d, twice, 0, d * n, n, d, added, half)
    for k in range(depth):
        rows, columns, at, a_at = table[k, 0], table[k, 1], table[k, 2] * n, table[k, 4] * n
        store(a_error, k * n, error)
        if k == depth - 1:
            break
        for i in range(rows):
            store(a, a_at + (columns + i) * n, zero)
        add_times(zero, n, w, at, rows, columns, a, a_at, a, a_at + columns * n)
        size = times(load(zero, w_norm, k * n), _norm(zero, n, a, a_at, columns))
        added = _added(zero, size, (columns + 4) * _EPS)
        error = spread(
            zero, n, depth + 1, m, columns, w, at, n, columns * n, rows, added, half
        )  # fmt: skip


@helper
def quotient(zero, n, w, table, sigma, b, a, w_norm, b_error, a_error, vector, c, m, half):
    """V'HV/|V|^2 and a bound on its error; V from X and Y as `sharpness` leaves them."""
    depth, d = table.shape[0], sigma.shape[0]
    two = splat(zero, 2.0)
    m[:], c[:] = 0.0, 0.0
    total, error, square, c_error = zero, zero, zero, zero
    for k in range(depth - 1, -1, -1):
        rows, columns, at, b_at = table[k, 0], table[k, 1], table[k, 2] * n, table[k, 3] * n
        a_at, x_at = table[k, 4] * n, table[k, 5] * n
        y_at, below = x_at + rows * n, b_at - columns * n
        a_square = _dot(zero, n, a, a_at, a, a_at, columns * n)
        b_square = _dot(zero, n, b, b_at, b, b_at, rows * n)
        a_norm, b_norm = root(a_square), root(b_square)
        x_scale, y_scale = _inverse(zero, a_norm), _inverse(zero, b_norm)
        x_norm = times(x_scale, _norm(zero, n, vector, x_at, rows))
        y_norm = times(y_scale, _norm(zero, n, vector, y_at, columns))
        x_b = times(x_scale, _dot(zero, n, vector, x_at, b, b_at, rows * n))
        y_a = times(y_scale, _dot(zero, n, vector, y_at, a, a_at, columns * n))
        v_norm = fma(x_norm, a_norm, times(y_norm, b_norm))
        square = fma(times(x_norm, x_norm), a_square, square)
        square = fma(times(y_norm, y_norm), b_square, fma(two, times(x_b, y_a), square))
        # 2 c_k.(V a_k), V a_k = x |a|^2 + b (y.a)
        c_x = times(x_scale, _dot(zero, n, c, b_at, vector, x_at, rows * n))
        c_b = _dot(zero, n, c, b_at, b, b_at, rows * n)
        total = fma(two, fma(c_x, a_square, times(c_b, y_a)), total)
        c_norm = _norm(zero, n, c, b_at, rows)
        lost = splat(zero, (rows + columns + 12) * _EPS)
        wrong_a = fma(lost, a_norm, load(zero, a_error, k * n))
        error = fma(two, times(times(c_norm, v_norm), wrong_a), error)
        error = fma(two, times(times(c_error, v_norm), plus(a_norm, wrong_a)), error)
        size = fma(c_norm, load(zero, w_norm, k * n), times(v_norm, b_norm))
        added = fma(lost, size, times(v_norm, load(zero, b_error, k * n)))
        # c_{k-1} = W'c_k + a (x.b) + |b|^2 y
        for j in range(0, columns * n, n):
            y = times(y_scale, load(zero, vector, y_at + j))
            store(c, below + j, fma(x_b, load(zero, a, a_at + j), times(b_square, y)))
        if k < depth - 1:
            transposed_times(zero, n, w, at, rows, columns, c, b_at, c, below, True)
        c_error = spread(
            zero, n, depth + 1, m, rows, w, at, columns * n, n, columns, added, half
        )  # fmt: skip
    total = plus(total, scaled_symmetric(zero, n, sigma, 2.0, c, half, d))
    pulled, c_norm = _norm(zero, n, half, 0, d), _norm(zero, n, c, 0, d)
    size = 0.0
    for i in range(d):
        for j in range(d):
            size += sigma[i, j] ** 2
    size = splat(zero, 2.0 * np.sqrt(size))
    error = fma(c_error, fma(two, pulled, times(size, c_error)), error)
    error = fma(splat(zero, 2.0 * (d + 8) * _EPS), times(size, times(c_norm, c_norm)), error)
    inverse = _inverse(zero, square)
    value = times(total, inverse)
    loss = _added(zero, where_less(value, zero, minus(zero, value), value), (depth + 40) * _EPS)
    return value, fma(splat(zero, 1.01), times(error, inverse), loss)


@helper
def factorised(zero, n, pivot, size, inverse):
    """Cholesky of `pivot` in place and the inverse of the factor; 1 in lanes where it ends early.

    Lower triangles; the inverse of the triangle column by column.
    """
    one = splat(zero, 1.0)
    bad = zero
    for j in range(size):
        total = load(zero, pivot, (j * size + j) * n)
        for k in range(j):
            left = load(zero, pivot, (j * size + k) * n)
            total = minus(total, times(left, left))
        bad = where_less(zero, total, bad, one)
        total = where_less(zero, total, total, one)
        diagonal = root(total)
        store(pivot, (j * size + j) * n, diagonal)
        scale = over(one, diagonal)
        for i in range(j + 1, size):
            total = load(zero, pivot, (i * size + j) * n)
            for k in range(j):
                left = load(zero, pivot, (i * size + k) * n)
                total = minus(total, times(left, load(zero, pivot, (j * size + k) * n)))
            store(pivot, (i * size + j) * n, times(total, scale))
    for j in range(size):
        for i in range(j, size):
            total = one if i == j else zero
            for k in range(j, i):
                left = load(zero, pivot, (i * size + k) * n)
                total = minus(total, times(left, load(zero, inverse, (k * size + j) * n)))
            scale = over(one, load(zero, pivot, (i * size + i) * n))
            store(inverse, (i * size + j) * n, times(total, scale))
    return bad


@helper
def _lower_norm(zero, n, m, size):
    total = zero
    for i in range(size):
        for j in range(i + 1):
            x = load(zero, m, (i * size + j) * n)
            total = fma(x, x, total)
    return root(total)


@helper
def not_below(
    zero, n, w, table, sigma, b, a, w_norm, b_error, a_error, high, q, pivot, inverse, z, psi
):
    """0 in the lanes where all eigenvalues are proved to be below `high`, 1 elsewhere."""
    depth, d = table.shape[0], sigma.shape[0]
    one, two, eps = splat(zero, 1.0), splat(zero, 2.0), splat(zero, _EPS)
    for i in range(d):
        for j in range(d):
            store(q, (i * d + j) * n, splat(zero, 2.0 * sigma[i, j]))
    bad = where_less(zero, high, zero, one)
    high = where_less(zero, high, high, one)
    per = over(one, high)
    for k in range(depth):
        rows, columns, at = table[k, 0], table[k, 1], table[k, 2] * n
        b_at, a_at = table[k, 3] * n, table[k, 4] * n
        u = splat(zero, (columns // 2 + 4) * _EPS)
        b_norm, a_norm = _norm(zero, n, b, b_at, rows), _norm(zero, n, a, a_at, columns)
        wrong_b = fma(eps, b_norm, load(zero, b_error, k * n))
        wrong_a = fma(eps, a_norm, load(zero, a_error, k * n))
        # |b|^2 or a little more
        size = fma(splat(zero, (rows + 20) * _EPS), b_norm, plus(b_norm, wrong_b))
        b_square = times(size, size)
        q_norm = _norm(zero, n, q, 0, columns * columns)
        loss = fma(b_square, q_norm, times(splat(zero, 1.0 * columns), high))
        free = minus(high, times(times(two, u), loss))
        back = minus(zero, b_square)
        for i in range(columns):
            for j in range(i + 1):
                here = (i * columns + j) * n
                part = times(back, load(zero, q, here))
                store(pivot, here, plus(free, part) if i == j else part)
        failed = factorised(zero, n, pivot, columns, inverse)
        bad = where_less(zero, failed, one, bad)
        if k == depth - 1:
            break
        # z = |b| L^{-1} q, then q + z'z = sigma N in place of q
        z_square = zero
        for i in range(columns):
            for j in range(columns):
                total = zero
                for i2 in range(i + 1):
                    left = load(zero, inverse, (i * columns + i2) * n)
                    total = fma(left, load(zero, q, (i2 * columns + j) * n), total)
                total = times(size, total)
                store(z, (i * columns + j) * n, total)
                z_square = fma(total, total, z_square)
        for i in range(columns):
            for j in range(i + 1):
                total = load(zero, q, (i * columns + j) * n)
                for i2 in range(columns):
                    left = load(zero, z, (i2 * columns + i) * n)
                    total = fma(left, load(zero, z, (i2 * columns + j) * n), total)
                store(q, (i * columns + j) * n, total)
                store(q, (j * columns + i) * n, total)
        z_norm = root(z_square)
        factor = _lower_norm(zero, n, pivot, columns)
        reach = times(two, times(u, _lower_norm(zero, n, inverse, columns)))
        z_error = times(reach, fma(factor, z_norm, times(size, q_norm)))
        inner_error = times(z_error, fma(two, z_norm, z_error))
        inner_error = fma(u, plus(z_square, q_norm), inner_error)
        inner = _norm(zero, n, q, 0, columns * columns)
        # Psi[j, i] = W[i, j] + a_j b_i / sigma
        for j in range(columns):
            share = times(per, load(zero, a, a_at + j * n))
            for i in range(rows):
                entry = load(zero, w, at + (i * columns + j) * n)
                entry = fma(share, load(zero, b, b_at + i * n), entry)
                store(psi, (j * rows + i) * n, entry)
        psi_norm = _norm(zero, n, psi, 0, columns * rows)
        psi_error = fma(b_norm, wrong_a, times(wrong_b, plus(a_norm, wrong_a)))
        psi_error = fma(splat(zero, 4 * _EPS), times(b_norm, a_norm), psi_error)
        psi_error = fma(eps, load(zero, w_norm, k * n), times(per, psi_error))
        half_square = congruence(zero, n, q, columns, psi, 0, rows * n, n, rows, z)
        half = root(half_square)
        error = times(times(psi_norm, psi_norm), inner_error)
        both = fma(two, half, times(psi_error, inner))
        both = fma(two, times(psi_norm, inner_error), both)
        error = fma(psi_error, both, error)
        error = fma(times(u, psi_norm), fma(psi_norm, inner, half), error)
        error = fma(splat(zero, 2 * _EPS), _norm(zero, n, q, 0, rows * rows), error)
        last = times(times(a_norm, a_norm), per)
        extra = fma(two, a_norm, wrong_a)
        error = fma(times(wrong_a, extra), per, error)
        error = fma(splat(zero, (columns + 12) * _EPS), last, error)
        last = fma(two, error, last)
        for i in range(rows):
            here = i * (rows + 1) * n
            store(q, here, plus(load(zero, q, here), last))
    return bad


@compiled
def blocks_interval(
    lanes, weights, table, sigma, w_star, p, vectors, share, value, low, high, first, last
):
    """Quotient, low end and high end of blocks first..last-1; the high end is the quotient times
    1 + share where that is proved, infinite elsewhere."""
    n, depth = len(lanes), table.shape[0]
    zero = splat(lanes, 0.0)
    one = splat(zero, 1.0)
    outputs = (table[depth - 1, 3] + table[depth - 1, 0]) * n
    inputs = (table[depth - 1, 4] + table[depth - 1, 1]) * n
    widest = max(table[:, 0].max(), table[:, 1].max())
    b, c, a = np.empty(outputs), np.empty(outputs), np.empty(inputs)
    w_norm, b_error, a_error = np.empty(depth * n), np.empty(depth * n), np.empty(depth * n)
    m, half = np.empty(widest * widest * n), np.empty(widest * widest * n)
    pivot, inverse = np.empty(widest * widest * n), np.empty(widest * widest * n)
    z, psi = np.empty(widest * widest * n), np.empty(widest * widest * n)
    out = np.empty(3 * n)
    for block in range(first, last):
        w, vector = weights[block].reshape(-1), vectors[block].reshape(-1)
        errors(
            zero, n, w, table, sigma, w_star, p, b, a, w_norm, b_error, a_error, m, half, pivot
        )  # fmt: skip
        found, wrong = quotient(
            zero, n, w, table, sigma, b, a, w_norm, b_error, a_error, vector, c, m, half
        )  # fmt: skip
        trial = times(found, plus(one, splat(zero, share)))
        bad = not_below(
            zero, n, w, table, sigma, b, a, w_norm, b_error, a_error, trial, m, pivot, inverse,
            z, psi,
        )  # fmt: skip
        store(out, 0, found)
        store(out, n, minus(found, wrong))
        store(out, 2 * n, where_less(zero, bad, splat(zero, np.inf), trial))
        for lane in range(n):
            value[block, lane] = out[lane]
            low[block, lane] = out[n + lane]
            high[block, lane] = out[2 * n + lane]
