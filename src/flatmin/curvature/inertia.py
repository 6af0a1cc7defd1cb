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

This is a block Cholesky factorisation of sigma I - H, so its pivots are positive exactly when all
eigenvalues are below sigma (inertia is additive over Schur complements, Haynsworth 1968); the pivot
of layer k is positive exactly when sigma I > J'Q_{k-1}J, K = JJ'. Cost O(sum_k (m d_k)^3), and H is
never formed. For one output: N = Q (sigma - |b_k|^2 Q)^{-1} and
Q_k = sigma (W_k + b_k a_k'/sigma) N (W_k + b_k a_k'/sigma)' + (|a_k|^2/sigma) I.

Proof in floating point. Q_k grows, as matrices do, with Q_{k-1}, with K and with a_k'a_k, and every
term is a sum of positive ones: sigma N = Q + Z'Z with LL' = sigma I - J'QJ and Z = L^{-1} J'Q. So it
is enough to make each of them a little too large: to Q_k a multiple of the identity is added that
bounds the roundings made on the way to it (norms below are Frobenius norms, u the unit roundoff, n
a count of operations), and sigma I - J'QJ is lessened by what the factorisation may lose (as in
`theory.certificate`). B_k and a_k come from `sweeps` with bounds on their own errors. If every
factorisation runs to its end, all eigenvalues are below sigma: proved. If one does not, nothing is
proved, nothing is refuted. Underflow is not considered.

Shapes: a network is the first index everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import Float, Yes
from flatmin.data.regression import Regression
from flatmin.network.architecture import Architecture

Long = npt.NDArray[np.longdouble]

UNIT = float(np.finfo(np.float64).eps)
LONG_UNIT = float(np.finfo(np.longdouble).eps)
_LONG = np.longdouble


@dataclass(frozen=True, eq=False)
class Sweeps:
    """B_k and a_k, k = 1..L, of a batch of linear networks, in the longest type and rounded.

    `b_error` and `a_error` bound the norm of the error of the rounded ones, `[network, layer]`;
    `magnitudes` are B_k and a_k with absolute values in place of all numbers that enter.
    """

    layers: Sequence[Float]
    sigma: Float
    b_long: Sequence[Long]
    a_long: Sequence[Long]
    b: Sequence[Float]
    a: Sequence[Float]
    b_error: Float
    a_error: Float
    b_magnitude: Sequence[Float]
    a_magnitude: Sequence[Float]
    roundings: int

    def some(self, chosen: Yes) -> Sweeps:
        """Those of some networks."""
        lists = (
            [one[chosen] for one in many]
            for many in (self.layers, self.b_long, self.a_long, self.b, self.a)
        )
        layers, b_long, a_long, b, a = lists
        b_size, a_size = (
            [one[chosen] for one in many] for many in (self.b_magnitude, self.a_magnitude)
        )
        return Sweeps(
            layers,
            self.sigma,
            b_long,
            a_long,
            b,
            a,
            self.b_error[chosen],
            self.a_error[chosen],
            b_size,
            a_size,
            self.roundings,
        )


def _t(m: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    return np.swapaxes(m, -1, -2)


def _norm(m: Float) -> Float:
    """The Frobenius norm of each network's matrix."""
    return np.asarray(np.sqrt(np.sum(m * m, axis=(-2, -1))))


def sweeps(regression: Regression, architecture: Architecture, flat: Float) -> Sweeps:
    """Two sweeps in the longest floating-point type, and two of absolute values."""
    layers = architecture.split(flat)
    last = np.eye(architecture.widths[-1]) if architecture.output is None else architecture.p[None]
    target = np.atleast_2d(regression.w_star.T)
    sigma = regression.sigma
    b_long, a_long = _both([w.astype(_LONG) for w in layers], last, target, sigma, -1.0)
    b_size, a_size = _both([abs(w) for w in layers], abs(last), abs(target), abs(sigma), 1.0)
    b, a = ([x.astype(np.float64) for x in xs] for xs in (b_long, a_long))
    # Along each path through the sums one rounding a factor and one a term.
    roundings = 2 * (sum(architecture.widths) + architecture.inputs + 2 * architecture.depth + 2)
    loss = roundings * LONG_UNIT
    b_error = [UNIT * _norm(x) + loss * _norm(y) for x, y in zip(b, b_size, strict=True)]
    a_error = [UNIT * _norm(x) + loss * _norm(y) for x, y in zip(a, a_size, strict=True)]
    return Sweeps(
        layers,
        sigma,
        b_long,
        a_long,
        b,
        a,
        np.stack(b_error, axis=1),
        np.stack(a_error, axis=1),
        b_size,
        a_size,
        roundings,
    )


def _both(
    layers: Sequence[npt.NDArray[np.floating]],
    last: Float,
    target: Float,
    sigma: Float,
    sign: float,
) -> tuple[list[npt.NDArray[np.floating]], list[npt.NDArray[np.floating]]]:
    """B_1..B_L and a_1..a_L, with B_0 + sign P* for B_0 - P*."""
    kind = layers[0].dtype
    b = [np.broadcast_to(last.astype(kind), (len(layers[0]), *last.shape))]
    for w in reversed(layers):
        b.append(b[-1] @ w)
    b.reverse()
    g = 2.0 * ((b[0] + sign * target) @ sigma.astype(kind))
    a = [_t(g)]
    for w in layers[:-1]:
        a.append(w @ a[-1])
    return b[1:], a


def quotient(found: Sweeps, vectors: Sequence[Float]) -> tuple[Float, Float]:
    """Rayleigh quotients V'HV / |V|^2 and bounds on their errors; V as layers, not zero.

    In the longest type; the bound is the same sum with absolute values, times the roundings along
    a path.
    """
    value = _form(found, vectors, found.layers, found.b_long, found.a_long, found.sigma, _LONG)
    size = _form(
        found,
        [abs(v) for v in vectors],
        [abs(w) for w in found.layers],
        found.b_magnitude,
        found.a_magnitude,
        abs(found.sigma),
        np.float64,
    )
    norm = sum(np.sum(np.square(v.astype(_LONG)), axis=(1, 2)) for v in vectors)
    error = found.roundings * LONG_UNIT * size / norm + 2 * UNIT * abs(value / norm)
    return (value / norm).astype(np.float64), error.astype(np.float64)


def _form(found, vectors, layers, b, a, sigma, kind):  # type: ignore[no-untyped-def]
    """V'HV by the sums that head this module."""
    c, total = None, 0.0
    for k in range(len(layers) - 1, -1, -1):
        v = vectors[k].astype(kind)
        if c is not None:
            total = total + 2.0 * np.einsum("nij,njk,nki->n", c, v, a[k])
        step = b[k] @ v
        c = step if c is None else c @ layers[k].astype(kind) + step
    return total + 2.0 * np.sum((c @ sigma.astype(kind)) * c, axis=(1, 2))


def all_below(found: Sweeps, sigma: Float) -> Yes:
    """Whether all eigenvalues of each network's Hessian are proved to be below its sigma > 0."""
    d, m = found.sigma.shape[0], found.b[0].shape[1]
    networks = len(sigma)
    q = np.broadcast_to(2.0 * np.kron(np.eye(m), found.sigma), (networks, m * d, m * d)).copy()
    q[:, np.arange(m * d), np.arange(m * d)] += 2.0 * UNIT * np.trace(found.sigma)
    proved = np.asarray((sigma > 0.0) & np.isfinite(sigma))
    sigma = np.where(proved, sigma, 1.0)
    for k, w in enumerate(found.layers):
        rows, columns = w.shape[1:]
        n = m * columns
        u = UNIT * (2 * n + 8)
        b, a = found.b[k], found.a[k]
        b_error, a_error = found.b_error[:, k], found.a_error[:, k]
        b_norm, a_norm = _norm(b), _norm(a)
        j = _root(b @ _t(b), (2 * b_error + (rows + m) * 4 * UNIT * b_norm) * b_norm + b_error**2)
        lifted = np.einsum("nij,cd->nicjd", j, np.eye(columns)).reshape(networks, n, n)
        seen = _t(lifted) @ q
        pivot = -seen @ lifted
        q_norm, j_norm = _norm(q), _norm(lifted)
        trace = n * sigma
        shift = 2 * u * (j_norm**2 * q_norm + trace)
        pivot[:, np.arange(n), np.arange(n)] += (sigma - shift)[:, None]
        factor, positive = _cholesky(0.5 * (pivot + _t(pivot)))
        proved &= positive
        if k == len(found.layers) - 1 or not proved.any():
            break
        inverse = np.linalg.inv(factor)
        z = inverse @ seen
        n_hat = q + _t(z) @ z
        condition = _norm(factor) * _norm(inverse)
        z_norm = _norm(z)
        z_error = u * (condition * z_norm + _norm(inverse) * j_norm * q_norm)
        error = (2 * z_norm + z_error) * z_error + u * (z_norm**2 + q_norm)
        # Psi as a matrix from C (m x rows) to m x columns.
        psi = np.einsum("ij,nrc->nicjr", np.eye(m), w) + np.einsum(
            "nir,ncj->nicjr", b, a / sigma[:, None, None]
        )
        psi = psi.reshape(networks, n, m * rows)
        both = b_norm * a_error + b_error * a_norm + b_error * a_error
        psi_error = (both + 4 * UNIT * b_norm * a_norm) / sigma + UNIT * np.sqrt(m) * _norm(w)
        psi_norm, n_norm = _norm(psi), _norm(n_hat)
        add = np.einsum("nij,rs->nirjs", _t(a) @ a / sigma[:, None, None], np.eye(rows))
        add_error = (2 * a_error * a_norm + a_error**2 + u * a_norm**2) / sigma
        q = _t(psi) @ n_hat @ psi + add.reshape(networks, m * rows, m * rows)
        error = psi_norm**2 * error + psi_error * (2 * psi_norm + psi_error) * (n_norm + error)
        error = 2 * (error + 2 * u * psi_norm**2 * n_norm + add_error + UNIT * _norm(q))
        q = 0.5 * (q + _t(q))
        q[:, np.arange(m * rows), np.arange(m * rows)] += error[:, None]
    return proved


def _root(gram: Float, error: Float) -> Float:
    """J with JJ' >= gram + error for each network; the eigenvectors' own rounding is added."""
    values, vectors = np.linalg.eigh(gram)
    trace = np.trace(gram, axis1=1, axis2=2)
    values = np.maximum(values, 0.0) + (error + 16 * len(gram[0]) * UNIT * trace)[:, None]
    return np.asarray(vectors * np.sqrt(values)[:, None, :])


def _cholesky(matrices: Float) -> tuple[Float, Yes]:
    """The factors, and which there are; the identity stands for one that there is not."""
    usable = np.isfinite(matrices).all(axis=(1, 2))
    try:
        if usable.all():
            return np.linalg.cholesky(matrices), usable
    except np.linalg.LinAlgError:
        pass
    factors = np.broadcast_to(np.eye(matrices.shape[1]), matrices.shape).copy()
    for i in np.flatnonzero(usable):
        try:
            factors[i] = np.linalg.cholesky(matrices[i])
        except np.linalg.LinAlgError:
            usable[i] = False
    return factors, usable
