"""Is every eigenvalue of the Hessian below sigma? For linear networks, layer by layer.

Notation of `linear` and `multivariate` in one: B_k = O W_L...W_{k+1} (m x d_k) with O = p' for one
output and O = I for several, G = 2 (B_0 - P*) Sigma, and a_k = W_{k-1}...W_1 G' (d_{k-1} x m). With
C_k for the change of B_k along V = (V_1..V_L), C_L = 0 and C_{k-1} = C_k W_k + B_k V_k, the second
derivative of the risk along V is

    V'HV = 2 tr(C_0 Sigma C_0') + 2 sum_k tr(C_k V_k a_k).

So sigma |V|^2 - V'HV > 0 for all V is a control problem: C_k is the state, V_k the control.
Eliminate V_1, then V_2, and so on: with q_k(C) the largest value of
V'HV - sigma |V|^2 over V_1..V_k from a given C_k = C, a quadratic form with matrix Q_k,

    Q_0 = 2 I (x) Sigma,      N = Q (sigma - K Q)^{-1} at Q = Q_{k-1},   K = (B_k B_k') (x) I,
    Q_k = sigma Psi' N Psi + (a_k'a_k) (x) I / sigma,
    Psi: C -> C W_k + B_k C' a_k' / sigma.

This is a block Cholesky factorisation of sigma I - H (docs/theory/sharpness-interval.md): all
eigenvalues are below sigma exactly when sigma I > J'Q_{k-1}J, K = JJ', for every layer. Cost
O(sum_k (m d_k)^3), and H is never formed.

Proof in floating point. Q_k grows, as matrices do, with Q_{k-1}, with K and with a_k'a_k, and each
term is a sum of positive ones: sigma N = Q + Z'Z with LL' = sigma I - J'QJ and Z = L^{-1} J'Q. So
it is enough to make them a little too large: to Q_k a multiple of the identity is added that bounds
the roundings made on the way to it (norms are Frobenius norms, u the unit roundoff times a count of
operations), and sigma I - J'QJ is lessened by what the factorisation may lose (as in
`theory.certificate`). If every factorisation runs to its end, all eigenvalues are below sigma:
proved. If one does not, nothing is proved, nothing is refuted. Underflow is not considered.

The errors of B_k and a_k themselves come from `sweeps`. An error e of B_k becomes eW_k + delta in
B_{k-1}, with delta the roundings of that product. From e'e <= E follows, for every x > 0,

    (eW + delta)'(eW + delta) <= (1 + x) W'EW + (1 + 1/x) |delta|^2 I,

so a matrix E is carried along, x = 1/L, and |e|^2 <= tr E. A product of the layers' norms would
bound the error too, but it overtakes the product's norm by powers of d.

Shapes: a network is the first index everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import Float, Yes
from flatmin.data.regression import Regression
from flatmin.network.architecture import Architecture

Array = npt.NDArray[Any]

UNIT = float(np.finfo(np.float64).eps)
LONG_UNIT = float(np.finfo(np.longdouble).eps)


def _t(m: Array) -> Array:
    return np.swapaxes(m, -1, -2)


def norm(m: Array) -> Float:
    """The Frobenius norm of each network's matrix."""
    return np.asarray(np.sqrt(np.sum(np.square(m), axis=(-2, -1))), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Sweeps:
    """B_k and a_k, k = 1..L, of a batch of linear networks, in the longest floating-point type.

    `b_error` and `a_error` bound the norm of their errors, `[network, layer]`.
    """

    layers: Sequence[Float]
    sigma: Float
    b: Sequence[Array]
    a: Sequence[Array]
    b_error: Float
    a_error: Float

    def some(self, chosen: Yes) -> Sweeps:
        """Those of some networks."""
        layers, b, a = ([x[chosen] for x in xs] for xs in (self.layers, self.b, self.a))
        return Sweeps(layers, self.sigma, b, a, self.b_error[chosen], self.a_error[chosen])


class Spread:
    """The matrix E of an error that is carried through layers; see above."""

    def __init__(self, networks: int, size: int, depth: int) -> None:
        self._matrix = np.zeros((networks, size, size))
        self._depth = depth

    def through(self, w: Float, added: Float) -> Float:
        """On to e w + delta, |delta| <= added; returns a bound on the norm of the new error."""
        matrix = (1.0 + 1.0 / self._depth) * (_t(w) @ self._matrix @ w)
        extra = (1.0 + self._depth) * added**2
        self._matrix = matrix + extra[:, None, None] * np.eye(matrix.shape[-1])
        trace: Float = np.trace(self._matrix, axis1=1, axis2=2)
        return np.asarray(1.01 * np.sqrt(trace))  # its own roundings are far below 1 %


def sweeps(regression: Regression, architecture: Architecture, flat: Float) -> Sweeps:
    """Two sweeps in the longest type, with the errors they make."""
    layers, long = architecture.split(flat), architecture.split(flat.astype(np.longdouble))
    networks, depth, sigma = len(flat), architecture.depth, regression.sigma
    last = architecture.output_map
    sizes = [norm(w) for w in layers]
    b: list[Array] = [np.broadcast_to(last.astype(np.longdouble), (networks, *last.shape))]
    spread = Spread(networks, last.shape[1], depth + 1)
    b_error = [np.zeros(networks)]
    for k in range(depth - 1, -1, -1):
        added = _lost(layers[k].shape[1]) * sizes[k] * norm(b[-1])
        b.append(b[-1] @ long[k])
        b_error.append(spread.through(layers[k], added))
    b.reverse()
    b_error.reverse()
    off = b[0] - np.atleast_2d(regression.w_star.T)
    g = 2.0 * (off @ sigma.astype(np.longdouble))
    twice = np.broadcast_to(2.0 * sigma, (networks, *sigma.shape))
    added = _lost(len(sigma)) * norm(twice) * (norm(off) + norm(b[0]))
    a, a_error = [_t(g)], [spread.through(twice, added)]
    for k in range(depth - 1):
        added = _lost(layers[k].shape[2]) * sizes[k] * norm(a[-1])
        a.append(long[k] @ a[-1])
        a_error.append(spread.through(_t(layers[k]), added))
    errors = (np.stack(x, axis=1) for x in (b_error[1:], a_error))
    return Sweeps(layers, sigma, b[1:], a, *errors)


def _lost(terms: int) -> float:
    """What a product of so many terms an entry loses, in the longest type."""
    return (terms + 4) * LONG_UNIT


def quotient(found: Sweeps, vectors: Sequence[Float]) -> tuple[Float, Float]:
    """Rayleigh quotients V'HV / |V|^2 and bounds on their errors; V as layers, not zero."""
    depth, networks = len(found.layers), len(found.layers[0])
    long = [v.astype(np.longdouble) for v in vectors]
    m, rows = found.b[-1].shape[1:]
    c: Array = np.zeros((networks, m, rows), dtype=np.longdouble)
    spread = Spread(networks, rows, depth + 1)
    c_error = total = error = np.zeros(networks)
    for k in range(depth - 1, -1, -1):
        w, v, a, b = found.layers[k], long[k], found.a[k], found.b[k]
        seen = c @ v
        total = total + 2.0 * np.einsum("nij,nji->n", seen, a)
        v_norm, c_norm, a_norm, b_norm = norm(v), norm(c), norm(a), norm(b)
        a_error, b_error = found.a_error[:, k], found.b_error[:, k]
        error = error + 2.0 * norm(seen) * a_error
        error = error + 2.0 * c_error * v_norm * (a_norm + a_error)
        lost = _lost(sum(w.shape[1:]) + m)
        error = error + 2.0 * lost * c_norm * v_norm * a_norm
        added = v_norm * b_error + lost * (c_norm * norm(w) + b_norm * v_norm)
        c = c @ w.astype(np.longdouble) + b @ v
        c_error = spread.through(w, added)
    pulled = c @ (2.0 * found.sigma).astype(np.longdouble)
    total = total + np.einsum("nij,nij->n", pulled, c)
    size = norm(found.sigma[None])
    error = error + c_error * (2.0 * norm(pulled) + 2.0 * size * c_error)
    error = error + 4.0 * _lost(m * len(found.sigma)) * size * norm(c) ** 2
    square = sum(np.sum(np.square(v), axis=(1, 2)) for v in long)
    value = total / square
    error = 1.01 * error / square + _lost(found.layers[0][0].size) * abs(value) + UNIT * abs(value)
    return value.astype(np.float64), np.asarray(error, dtype=np.float64)


def vanishes(found: Sweeps) -> Yes:
    """Where H is 0: no path of layers that are not leads to Sigma or to an a_k that is not."""
    reached: Any = False
    seen: Any = False
    for k in range(len(found.layers) - 1, -1, -1):
        seen |= reached & (np.any(found.a[k] != 0, axis=(1, 2)) | (found.a_error[:, k] > 0))
        begins = np.any(found.b[k] != 0, axis=(1, 2)) | (found.b_error[:, k] > 0)
        reached = (reached & np.any(found.layers[k] != 0, axis=(1, 2))) | begins
    return np.asarray(~(seen | reached))


def double_error(found: Sweeps) -> Float:
    """A bound on the norm of the error of H made in double precision, entry by entry.

    b_k and a_k lose UNIT / LONG_UNIT times what they lose in the longest type, which is far more
    than UNIT times their size where products cancel. H made of wrong ones is still a Hessian's form
    in C_k, so that its change is the form's: c_error is that of C_k, |V| = 1.
    """
    depth, networks = len(found.layers), len(found.layers[0])
    m, rows = found.b[-1].shape[1:]
    reach, spread = Spread(networks, rows, depth), Spread(networks, rows, depth)
    c_norm, c_error, error = np.zeros(networks), np.zeros(networks), np.zeros(networks)
    worse = UNIT / LONG_UNIT
    for k in range(depth - 1, -1, -1):
        w = found.layers[k]
        lost = worse * _lost(sum(w.shape[1:]) + m)
        a_error, b_error = worse * found.a_error[:, k], worse * found.b_error[:, k]
        a_norm, b_norm = norm(found.a[k]) + a_error, norm(found.b[k]) + b_error
        error = error + 2.0 * (c_error * a_norm + c_norm * (a_error + lost * a_norm))
        c_error = spread.through(w, b_error + lost * (c_norm * norm(w) + b_norm))
        c_norm = reach.through(w, b_norm)
    size, lost = np.linalg.norm(found.sigma), worse * _lost(m * len(found.sigma))
    return np.asarray(error + 2.0 * size * (c_error * (2.0 * c_norm + c_error) + lost * c_norm**2))


def all_below(found: Sweeps, sigma: Float) -> Yes:
    """Whether all eigenvalues of each network's Hessian are proved to be below its sigma > 0."""
    d, m = found.sigma.shape[0], found.b[0].shape[1]
    networks = len(sigma)
    q = np.broadcast_to(2.0 * np.kron(np.eye(m), found.sigma), (networks, m * d, m * d))
    proved: Yes = np.asarray((sigma > 0.0) & np.isfinite(sigma))
    sigma = np.where(proved, sigma, 1.0)
    for k, w in enumerate(found.layers):
        rows, columns = w.shape[1:]
        n = m * columns
        u = UNIT * (n // 2 + 4)
        b, a = found.b[k].astype(np.float64), found.a[k].astype(np.float64)
        b_norm, a_norm = norm(b), norm(a)
        b_error = found.b_error[:, k] + UNIT * b_norm
        a_error = found.a_error[:, k] + UNIT * a_norm
        j = _root(b @ _t(b), (2 * b_error + (rows + m) * UNIT * b_norm) * b_norm + b_error**2)
        j = np.einsum("nij,cd->nicjd", j, np.eye(columns)).reshape(networks, n, n)
        seen = _t(j) @ q
        pivot = -seen @ j
        q_norm, j_norm = norm(q), norm(j)
        shift = 2 * u * (j_norm**2 * q_norm + n * sigma)
        pivot = 0.5 * (pivot + _t(pivot)) + (sigma - shift)[:, None, None] * np.eye(n)
        factor, positive = _cholesky(pivot)
        proved &= positive
        if k == len(found.layers) - 1 or not proved.any():
            break
        inverse = np.linalg.inv(factor)
        z = inverse @ seen
        inner = q + _t(z) @ z  # sigma N
        z_norm, z_two, inner_norm, inner_two = norm(z), _two(z), norm(inner), _two(inner)
        z_error = 2 * u * _two(inverse) * (norm(factor) * z_norm + j_norm * q_norm)
        inner_error = (2 * z_two + z_error) * z_error + u * (z_norm**2 + q_norm)
        # Psi as a matrix from C (m x rows) to m x columns.
        psi = np.einsum("ij,nrc->nicjr", np.eye(m), w)
        psi = psi + np.einsum("nir,ncj->nicjr", b, a / sigma[:, None, None])
        psi = psi.reshape(networks, n, m * rows)
        psi_error = b_norm * a_error + b_error * (a_norm + a_error) + 4 * UNIT * b_norm * a_norm
        psi_error = psi_error / sigma + np.sqrt(m) * UNIT * norm(w)
        psi_norm, psi_two = norm(psi), _two(psi)
        last = _t(a) @ a / sigma[:, None, None]
        last = np.einsum("nij,rs->nirjs", last, np.eye(rows)).reshape(networks, m * rows, -1)
        half = inner @ psi
        q = _t(psi) @ half + last
        error = psi_two**2 * inner_error
        error += psi_error * (2 * _two(half) + psi_error * inner_two + 2 * psi_two * inner_error)
        error += u * psi_norm * (psi_two * inner_norm + norm(half)) + 2 * UNIT * norm(q)
        error += (2 * a_error * a_norm + a_error**2 + u * a_norm**2) / sigma
        q = 0.5 * (q + _t(q)) + 2 * error[:, None, None] * np.eye(m * rows)
    return proved


def _two(m: Array) -> Float:
    """The spectral norm of each network's matrix, or a little more."""
    m = np.where(np.isfinite(m).all(axis=(1, 2), keepdims=True), m, 0.0)
    return np.asarray(1.01 * np.linalg.norm(m, 2, axis=(1, 2)))


def _root(gram: Float, error: Float) -> Float:
    """J with JJ' >= gram + error I for each network; the eigenvectors' own rounding is added."""
    values, vectors = np.linalg.eigh(gram)
    size = 16 * gram.shape[1] * UNIT * np.trace(gram, axis1=1, axis2=2)
    values = np.maximum(values, 0.0) + (error + size)[:, None]
    return np.asarray(vectors * np.sqrt(values)[:, None, :])


def _cholesky(matrices: Float) -> tuple[Float, Yes]:
    """The factors, and which there are; the identity stands for one that there is not."""
    usable: Yes = np.asarray(np.isfinite(matrices).all(axis=(1, 2)))
    factors = np.broadcast_to(np.eye(matrices.shape[1]), matrices.shape).copy()
    try:
        if usable.all():
            return np.asarray(np.linalg.cholesky(matrices)), usable
    except np.linalg.LinAlgError:
        pass
    for i in np.flatnonzero(usable):
        try:
            factors[i] = np.linalg.cholesky(matrices[i])
        except np.linalg.LinAlgError:
            usable[i] = False
    return factors, usable
