"""Products and sums over lane vectors, shared by the compiled kernels.

Element e of a buffer of n lanes begins at index e n; `width` below is columns * n. Rows of a matrix
are taken two at a time: one row leaves the arithmetic units waiting for loads, more than two spill
registers (measured at d = 5, 20 and 64).
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from flatmin.lanes.compiling import inlined
from flatmin.lanes.vectors import fma, load, plus, splat, store, times, where_less


@inlined
def _two_rows_transposed(zero, n, w, row, x, x_at, width, y, y_at, start):
    """y (+)= w_i x_i + w_{i+1} x_{i+1} for the two rows that begin at `row`."""
    x0 = load(zero, x, x_at)
    x1 = load(zero, x, x_at + n)
    if start:
        for j in range(0, width, n):
            total = fma(load(zero, w, row + j), x0, zero)
            store(y, y_at + j, fma(load(zero, w, row + width + j), x1, total))
    else:
        for j in range(0, width, n):
            total = fma(load(zero, w, row + j), x0, load(zero, y, y_at + j))
            store(y, y_at + j, fma(load(zero, w, row + width + j), x1, total))


@inlined
def _one_row_transposed(zero, n, w, row, x, x_at, width, y, y_at, start):
    """y (+)= w_i x_i for the row that begins at `row`."""
    x0 = load(zero, x, x_at)
    if start:
        for j in range(0, width, n):
            store(y, y_at + j, fma(load(zero, w, row + j), x0, zero))
    else:
        for j in range(0, width, n):
            store(y, y_at + j, fma(load(zero, w, row + j), x0, load(zero, y, y_at + j)))


@inlined
def transposed_times(zero, n, w, at, rows, columns, x, x_at, y, y_at, add):
    """y = W' x, or y += W' x if `add`."""
    width = columns * n
    i = 0
    while i < rows:
        row, here, start = at + i * width, x_at + i * n, i == 0 and not add
        if rows - i >= 2:
            _two_rows_transposed(zero, n, w, row, x, here, width, y, y_at, start)
        else:
            _one_row_transposed(zero, n, w, row, x, here, width, y, y_at, start)
        i += 2


@inlined
def _two_rows(zero, n, w, row, x, x_at, width, y, y_at, first, second):
    """The two entries of y that belong to the rows that begin at `row`, from given first terms."""
    for j in range(0, width, n):
        v = load(zero, x, x_at + j)
        first = fma(load(zero, w, row + j), v, first)
        second = fma(load(zero, w, row + width + j), v, second)
    store(y, y_at, first)
    store(y, y_at + n, second)


@inlined
def _one_row(zero, n, w, row, x, x_at, width, y, y_at, first):
    for j in range(0, width, n):
        first = fma(load(zero, w, row + j), load(zero, x, x_at + j), first)
    store(y, y_at, first)


@inlined
def add_times(zero, n, w, at, rows, columns, x, x_at, y, y_at):
    """y += W x."""
    width = columns * n
    i = 0
    while i < rows:
        row, here = at + i * width, y_at + i * n
        if rows - i >= 2:
            first, second = load(zero, y, here), load(zero, y, here + n)
            _two_rows(zero, n, w, row, x, x_at, width, y, here, first, second)
        else:
            _one_row(zero, n, w, row, x, x_at, width, y, here, load(zero, y, here))
        i += 2


@inlined
def scaled_symmetric(zero, n, sigma, scale, x, y, d):
    """y = scale Sigma x for the d x d matrix shared by all lanes; returns x' y."""
    from_zero = zero
    for i in range(d):
        total = zero
        for j in range(d):
            total = fma(splat(zero, scale * sigma[i, j]), load(zero, x, j * n), total)
        store(y, i * n, total)
        from_zero = fma(total, load(zero, x, i * n), from_zero)
    return from_zero


@inlined
def dot(zero, n, x, x_at, y, y_at, width):
    """x.y over vectors of `width` / n elements, in two chains."""
    even, odd = zero, zero
    j = 0
    while j < width:
        even = fma(load(zero, x, x_at + j), load(zero, y, y_at + j), even)
        if width - j >= 2 * n:
            odd = fma(load(zero, x, x_at + j + n), load(zero, y, y_at + j + n), odd)
        j += 2 * n
    return plus(even, odd)


@inlined
def add_scaled(zero, n, factor, x, x_at, y, y_at, width):
    """y += factor x."""
    for j in range(0, width, n):
        store(y, y_at + j, fma(factor, load(zero, x, x_at + j), load(zero, y, y_at + j)))


@inlined
def scale_into(zero, n, factor, x, x_at, y, y_at, width):
    """y = factor x."""
    for j in range(0, width, n):
        store(y, y_at + j, times(factor, load(zero, x, x_at + j)))


@inlined
def widen(zero, n, extremes, at, value):
    """extremes[at] and the vector after it become the least and the largest with `value`."""
    low = load(zero, extremes, at)
    high = load(zero, extremes, at + n)
    store(extremes, at, where_less(value, low, value, low))
    store(extremes, at + n, where_less(high, value, value, high))
