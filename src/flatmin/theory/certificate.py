"""A prediction with its proof: two numbers around S_min, and what it takes to check them.

In the notation of `minimal_sharpness`, Q = P* Sigma^{1/2} with P* = w*', for every t > 0 and x != 0

    2 L (|p|^2 x'Sigma x)^{1/L} |Qx|^{2-2/L} / |x|^2  <=  S_min  <=  2 lambda_max(B(t)),

    B(t) = t Sigma + (L-1) (|p|^2/t)^{1/(L-1)} Q'Q,

and the two ends meet at the best t and x (docs/theory/several-outputs.md has the proof; at L = 1
both are 2 |p|^2 lambda_max(Sigma), with t = |p|^2). So the pair (t, x) proves the value. Sigma is
given as F'F, so that it has no negative eigenvalue, and FF' takes its place: F = O Sigma^{1/2} with
O of orthonormal rows, so that with H = P* F' the ends are |F'x|^{2/L} |Hx|^{2-2/L} times constants,
and that of B = t FF' + c H'H, c = (L-1) (|p|^2/t)^{1/(L-1)}, of the size of Sigma's rank.
The numbers in F, P*, t, x and |p| are taken as exact; how near F'F is to the data's Sigma is the
business of `data.regression`.

Lower end: sums of products of binary fractions are done in whole numbers, without any rounding;
the roots with 60 decimal digits by the decimal module, whose ln and exp are rounded correctly.

Upper end: the matrix (mu - shift) I - B is formed and factored by Cholesky in NumPy's longest
floating-point type. Let u be its epsilon, twice the unit roundoff, and gamma_k = k u/(1 - k u).

- A product of matrices X Y with inner size k is off by at most gamma_k |X| |Y|, entry by entry and
  in any order of summation, |X| being the absolute values (Higham, Accuracy and Stability of
  Numerical Algorithms, (3.13)). The Frobenius norms of these bound the error of the computed B.
- If the factorisation of a computed matrix A of size n runs to its end, A + E is R'R >= 0 for some
  |E| <= gamma_{n+1}/(1 - gamma_{n+1}) tr A (Higham, Theorem 10.3; Rump, Verification of Positive
  Definiteness, 2006).

The shift is twice the sum of both and of the roundings of the diagonal; the factor two covers the
roundings of the shift itself. If the factorisation ends, lambda_max(B) <= mu. If it does not, then
mu is too small, or too close for this arithmetic: nothing is proved, nothing is refuted.
Underflow is not considered: F, P*, t are far from the ends of the range of the longest type. Where
that type is no longer than a double, intervals are some thousand times wider.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Context, Decimal, localcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import Float
from flatmin.core.checks import check_depth, number_of
from flatmin.core.errors import DataError, FlatminError
from flatmin.core.files import read_text, writing
from flatmin.core.pages import Page, Remarks
from flatmin.core.shown import Shown
from flatmin.data.samples import Problem, regression_of
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.units import nth_root

FORMAT = "flatmin certificate 1"

_DIGITS = Context(prec=60, Emax=10**15, Emin=-(10**15))
_LONG = np.longdouble
_U = np.longdouble(np.finfo(np.longdouble).eps)
# Eigenvalues this near the largest share its eigenspace at a kink.
_CLUSTER = 1e-8

Long = npt.NDArray[np.longdouble]


class Certificate(Shown):
    """lower <= S_min <= upper, with the pair (t, x) that proves it; see the module.

    `factor` is F with Sigma = F'F, of shape rank x d; `product` is P*, of shape targets x d.
    """

    depth: int
    output_norm: float
    lower: float
    upper: float
    t: float
    x: Float
    factor: Float
    product: Float

    @property
    def width(self) -> float:
        """(upper - lower) / lower."""
        return (self.upper - self.lower) / self.lower

    def verify(self) -> bool:
        """Whether both ends are proved, from the pair and the data alone; nothing is solved."""
        return not self._unproved

    @cached_property
    def _unproved(self) -> list[str]:
        held = {"lower": self.proves_lower(), "upper": self.proves_upper()}
        return [name for name, proved in held.items() if not proved]

    @property
    def verdict(self) -> str:
        """What is proved and what is not, in one line."""
        what = f"{self.lower!r} <= S_min <= {self.upper!r} at depth {self.depth}"
        if self.verify():
            return f"proved: {what} (relative width {self.width:.1e})"
        return f"not proved, {' and '.join(self._unproved)} end: {what}"

    def __str__(self) -> str:
        return self.verdict

    def page(self) -> Page:
        """The verdict; what takes part in it is in the file."""
        return [Remarks(self.verdict)]

    def proves_lower(self) -> bool:
        """Whether x proves S_min >= lower."""
        log = self.log_lower()
        if log is None or not self.lower > 0.0:
            return False
        with localcontext(_DIGITS):
            return Decimal(self.lower).ln() <= log - Decimal("1e-40")

    def log_lower(self) -> Decimal | None:
        """The logarithm of the lower end to 50 digits; None if it is 0."""
        x, k = _whole(self.x)
        factor, i = _whole(self.factor)
        product, j = _whole(self.product)
        y = factor.T @ x  # F'x, a whole number of 2^(i+k)
        z = product @ y  # H x, of 2^(i+j+k)
        with localcontext(_DIGITS):
            two, share = Decimal(2).ln(), 1 / Decimal(self.depth)
            norm, strong, seen = (Decimal(int(v @ v)) for v in (x, y, z))
            if self.depth == 1:
                seen = Decimal(1)  # its power is 0
            if not (norm and strong and seen):
                return None
            p = Decimal(self.output_norm).ln()
            log_strong = strong.ln() + 2 * (i + k) * two + 2 * p
            log_seen = seen.ln() + 2 * (i + j + k) * two
            log = share * log_strong + (1 - share) * log_seen - norm.ln() - 2 * k * two
            return log + Decimal(2 * self.depth).ln()

    def proves_upper(self) -> bool:
        """Whether t proves S_min <= upper."""
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows proves nothing
            return _at_most(*self.rounded_matrix(), self.upper / 2.0)

    def rounded_matrix(self) -> tuple[Long, np.longdouble]:
        """B(t) as computed, and a bound on its error in norm."""
        factor, product = self.factor.astype(_LONG), self.product.astype(_LONG)
        d, m = factor.shape[1], len(product)
        t, c = (_LONG(value) for value in self._coefficients())
        gram = factor @ factor.T
        seen = product @ factor.T
        update = seen.T @ seen
        seen_size = np.linalg.norm(seen)
        seen_error = _gamma(d) * _size(self.product, self.factor.T)
        error = t * _gamma(d) * _size(self.factor, self.factor.T)
        error += c * (_gamma(m) * seen_size**2 + seen_error * (2 * seen_size + seen_error))
        error += _gamma(3) * (t * np.linalg.norm(gram) + c * np.linalg.norm(update))
        return (t * gram + c * update).astype(_LONG), _LONG(error)

    def _coefficients(self) -> tuple[float, float]:
        """t, and c = (L-1) (|p|^2/t)^{1/(L-1)} rounded up; at L = 1, |p|^2 rounded up, and 0."""
        with localcontext(_DIGITS):
            p = Decimal(self.output_norm)
            if self.depth == 1:
                return math.nextafter(float(p * p), math.inf), 0.0
            rho = ((2 * p.ln() - Decimal(self.t).ln()) / (self.depth - 1)).exp()
            return self.t, math.nextafter(float((self.depth - 1) * rho), math.inf)

    def write(self, path: Path) -> None:
        """The certificate as JSON; the numbers come back bit by bit."""
        content = {"format": FORMAT} | self.as_dict()
        with writing(path) as temporary:
            temporary.write_text(json.dumps(content) + "\n")


def certify(regression: Problem, depth: int, output_norm: float = 1.0) -> Certificate:
    """S_min between two numbers that are proved.

    >>> from flatmin.data.generators import gaussian_samples
    >>> data = gaussian_samples(n=50, d=5, seed=0, targets=3).regression()
    >>> found = certify(data, depth=4)
    >>> found.verify(), abs(minimal_sharpness(data, 4).exact / found.lower - 1) < 1e-12
    (True, True)
    """
    regression, depth = regression_of(regression), check_depth(depth)
    t = minimal_sharpness(regression, depth, output_norm).t
    null = regression.d - regression.rank
    factor = (regression.eigenvectors[:, null:] * np.sqrt(regression.eigenvalues[null:])).T
    product = np.atleast_2d(regression.w_star.T)
    gram, seen = factor @ factor.T, product @ factor.T
    update = np.zeros_like(gram)
    if depth > 1:
        update = nth_root(output_norm**2 / t, depth - 1) * (seen.T @ seen)
    values, vectors = np.linalg.eigh(t * gram + (depth - 1) * update)
    x = vectors[:, -1]
    if depth > 1:
        x = _balanced(vectors[:, values > (1.0 - _CLUSTER) * values[-1]], t * gram - update)
    found = Certificate(
        depth=depth, output_norm=float(output_norm), lower=1.0, upper=1.0, t=t, x=x,
        factor=factor, product=product,
    )  # fmt: skip
    log = found.log_lower()
    if log is None:
        raise FlatminError("no lower end was found: the product of P* and x vanishes")
    with localcontext(_DIGITS):
        lower = math.nextafter(float(log.exp()), 0.0)
    matrix, error = found.rounded_matrix()
    least = float(values[-1])
    slack = float(_shift(len(x), error, _LONG(least)) / least + 4.0 * np.finfo(float).eps)
    while slack < 1.0:
        upper = least * (1.0 + slack)
        if _at_most(matrix, error, upper):
            return replace(found, lower=lower, upper=2.0 * upper)
        slack *= 2.0
    raise FlatminError("no upper end was proved: the data are beyond this machine's arithmetic")


def read_certificate(path: str | Path) -> Certificate:
    """The certificate in a file; a DataError says what is wrong with it."""
    text = read_text(Path(path))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise DataError(f"{path}: not a certificate: not JSON") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path}: not a certificate: expected format {FORMAT!r}")
    sizes = (("x", 1), ("factor", 2), ("product", 2))
    arrays = {name: _array(path, content, name, size) for name, size in sizes}
    x, factor, product = arrays.values()
    found: dict[str, Any] = {"depth": check_depth(content.get("depth")), **arrays}
    for name in ("lower", "upper", "t", "output_norm"):
        found[name] = _number(path, content, name)
    if factor.shape[0] != len(x) or factor.shape[1] != product.shape[1]:
        raise DataError(
            f"{path}: x, factor and product have shapes {x.shape}, {factor.shape} and "
            f"{product.shape}, which do not fit"
        )
    if len(product) > 1 and found["output_norm"] != 1.0:
        norm = found["output_norm"]
        raise DataError(f"{path}: output_norm must be 1 for several targets, got {norm:g}")
    return Certificate(**found)


def _number(path: str | Path, content: dict[str, Any], name: str) -> float:
    value = content.get(name)
    number = number_of(value) if type(value) in (int, float) else None
    if number is None or not 0 < number < math.inf:
        raise DataError(f"{path}: {name} must be a positive number, got {value!r:.60}")
    return number


def _array(path: str | Path, content: dict[str, Any], name: str, dimensions: int) -> Float:
    try:
        array = np.array(content.get(name), dtype=float)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(())
    if array.ndim != dimensions or not array.size or not np.isfinite(array).all():
        raise DataError(f"{path}: {name} must be finite numbers in {dimensions} dimension(s)")
    return array


def _balanced(top: Float, slope: Float) -> Float:
    """x in the span of eigenvectors (ascending) with x'slope x = 0 as nearly as it can be.

    From the last one, v, towards the w in the span whose derivative has the other sign: of the
    roots of (v + s w)'slope (v + s w) = 0 the smaller. A v that stands alone is x.
    """
    v = top[:, -1]
    at_v = float(v @ slope @ v)
    values, vectors = np.linalg.eigh(top.T @ slope @ top)
    pick = 0 if at_v > 0.0 else -1
    if values[pick] * at_v >= 0.0:
        return np.asarray(v)
    w, at_w = top @ vectors[:, pick], float(values[pick])
    mixed = float(v @ slope @ w)
    # at_w s^2 + 2 mixed s + at_v = 0 with at_w at_v < 0, without cancellation.
    s = -at_v / (mixed + math.copysign(math.sqrt(mixed**2 - at_w * at_v), mixed))
    x = v + s * w
    return np.asarray(x / np.linalg.norm(x))


def _whole(array: Float) -> tuple[npt.NDArray[np.object_], int]:
    """Whole numbers N and an exponent k with array = N 2^k exactly."""
    mantissa, exponent = np.frexp(array)
    parts = np.ldexp(mantissa, 53).astype(np.int64)
    exponents = np.where(parts == 0, np.max(exponent), exponent)
    lowest = int(exponents.min())
    shifts = (exponents - lowest).ravel().tolist()
    numbers = np.empty(array.size, dtype=object)
    numbers[:] = [n << s for n, s in zip(parts.ravel().tolist(), shifts, strict=True)]
    return numbers.reshape(array.shape), lowest - 53


def _size(left: Float, right: Float) -> float:
    """The Frobenius norm of |X| |Y| or a little more: its own roundings are far below 1 %."""
    return 1.01 * float(np.linalg.norm(np.abs(left) @ np.abs(right)))


def _gamma(k: int) -> np.longdouble:
    return _LONG(k * _U / (1 - k * _U))


def _shift(n: int, error: np.longdouble, mu: np.longdouble) -> np.longdouble:
    """What rounding could hide; the trace of mu I - B is at most n mu."""
    return _LONG(2 * (error + n * _gamma(n + 2) * mu + 4 * _U * mu))


def _at_most(matrix: Long, error: np.longdouble, bound: float) -> bool:
    """Whether lambda_max <= bound of every matrix as near to this one as the error, proved by a
    Cholesky factorisation that runs to its end."""
    mu = _LONG(bound)
    left = -matrix
    left[np.diag_indices(len(left))] += mu - _shift(len(left), error, mu)
    for k in range(len(left)):
        pivot = left[k, k]
        if not pivot > 0:
            return False
        column = left[k + 1 :, k] / np.sqrt(pivot)
        left[k + 1 :, k + 1 :] -= np.outer(column, column)
    return True
