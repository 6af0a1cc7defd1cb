"""The force on the middle of the swings of gradient descent at its edge of stability.

Gradient descent swings there, W_t = M + (-1)^t x u, along the top eigenvector u of the Hessian;
docs/theory/central-flow.md has the reasons. For linear networks with one output:

**Order 1** takes for sigma^2 = x^2 what holds S at 2/eta:

    dM/dt = -(grad R + (1/2) sigma^2 grad S),
    sigma^2 = max(0, -2 <grad S, grad R> / |grad S|^2)  while S = 2/eta, and 0 below.

Computed with sigma^2 = max(0, 2 (gamma (S - 2/eta) - <grad S, grad R>) / |grad S|^2), which tends
to it as gamma grows and needs no search for the moment of arrival: S then never rises faster than
gamma (2/eta - S), and a start above the edge comes down as exp(-gamma t).

**Order 2**: on the line M + s u the swing is the orbit of period two of gradient descent itself
(`line_orbit`), between m + x and m - x. M moves by the mean of the two gradients across u and
follows the valley's bottom along it,

    dM/dt = -(I - u u') (grad R(M + (m+x) u) + grad R(M + (m-x) u))/2 + (2/eta) m u.

Without an orbit M moves by gradient flow below the edge (the same, as x goes to 0), and by order 1
above it.

**Several critical eigenvalues.** Where a second eigenvalue is near the edge, the swing has a
covariance X in the span of the three largest, and its force in order 1 is
(1/2) sum_ij X_ij D^3R[u_i, u_j] (`swing_covariance`). Order 2 is kept where X has one direction,
and gives way to order 1 where it has more.
"""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.core.seeds import generator
from flatmin.core.spectra import eigenvalues
from flatmin.curvature import sharpness
from flatmin.curvature.directional import sharpness_gradient, slope_along
from flatmin.curvature.lanczos import Deflated, lanczos
from flatmin.curvature.linear import LinearHessian, backward, forward
from flatmin.curvature.operators import Hessian
from flatmin.data.regression import Regression
from flatmin.dynamics.line_orbit import TERMS, line_orbit
from flatmin.dynamics.swing_covariance import pairs, swing_covariance
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble

# Heun's method with h = eta/2 is stable up to S = 4/eta.
SUBSTEPS = 2
# gamma, in units of 1/eta.
RETURN = 0.5
_SHARPNESS_TOLERANCE = 1e-6
_OTHERS_TOLERANCE, _OTHERS_PRODUCTS = 1e-4, 60
# How many eigenvalues may be critical, and the share of the edge from which a second one may be.
CRITICAL, NEAR = 3, 0.95
# A second direction has at least this share of the swing's variance.
_SHARE = 1e-3


class Middles:
    """The middles of an ensemble's swings, with what is known of each."""

    def __init__(
        self,
        regression: Regression,
        architecture: Architecture,
        flat: Float,
        rates: Float,
        order: int,
    ) -> None:
        self.regression, self.architecture = regression, architecture
        self.flat, self.rates, self.edge, self.order = flat, rates, 2.0 / rates, order
        self.initial = flat.copy()
        self.vectors = np.zeros_like(flat)
        self.others = np.zeros((len(flat), CRITICAL - 1, flat.shape[1]))
        random = generator(0, "central flow").standard_normal(flat.shape[1])
        self._random = 0.1 * random / np.linalg.norm(random)
        self.critical = np.ones(len(flat), dtype=np.int64)
        self.sharpness, self.residual, self.swing = np.zeros((3, len(flat)))
        self.excess, self.mean_excess, self.gradient = np.zeros((3, len(flat)))

    def velocity(self, going: Whole, fresh: bool = False) -> Float:
        """dM/dt at the present weights; what is known of the networks is brought up to date."""
        return self._velocity(self.flat[going], going, fresh, keep=True)

    def advance(self, going: Whole, velocity: Float) -> Yes:
        """One step of descent's time, by Heun's method, from a known velocity.

        A network whose weights would be no numbers stays where it is; returns which do not.
        """
        before = self.flat[going]
        h = (self.rates[going] / SUBSTEPS)[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            for part in range(SUBSTEPS):
                if part:
                    velocity = self._velocity(self.flat[going], going)
                there = self.flat[going] + h * velocity
                self.flat[going] += 0.5 * h * (velocity + self._velocity(there, going))
        moved: Yes = np.all(np.isfinite(self.flat[going]), axis=1)
        self.flat[going] = np.where(moved[:, None], self.flat[going], before)
        return moved

    def _velocity(
        self, flat: Float, going: Whole, fresh: bool = False, keep: bool = False
    ) -> Float:
        start: Float | None = self.vectors[going]
        if fresh or not np.all(np.any(start, axis=1)):
            start = None
        ensemble = Ensemble.from_flat(self.architecture, flat)
        top = sharpness(
            self.regression, ensemble, tolerance=_SHARPNESS_TOLERANCE, start=start, certify=False
        )
        u = np.where(np.isfinite(top.value)[:, None], top.vector, 0.0)
        self.vectors[going] = u
        w, gradient = self._at(flat)
        if fresh:
            self._count(flat, u, top.value, going)
        push, q, several = self._push(flat, u, top.value, gradient, going)
        velocity, excess = -(gradient + push), self._excess(w) + 0.5 * top.value * q
        if self.order == 2:
            orbit, x2, mean, found = self._orbit(flat, u, going)
            found &= ~several
            flows = ~found & ~several & (top.value <= self.edge[going])
            velocity = np.where(flows[:, None], -gradient, velocity)
            velocity = np.where(found[:, None], orbit, velocity)
            q = np.where(found, x2, np.where(flows, 0.0, q))
            excess = np.where(found, mean, self._excess(w) + 0.5 * top.value * q)
        self.swing[going] = np.sqrt(q)
        if keep:
            self.sharpness[going], self.residual[going] = top.value, top.residual
            self.gradient[going] = np.linalg.norm(gradient, axis=1)
            self.excess[going], self.mean_excess[going] = self._excess(w), excess
        return velocity

    def _count(self, flat: Float, u: Float, value: Float, going: Whole) -> None:
        """How many eigenvalues are near the edge, until the next time."""
        near, self.critical[going] = value > NEAR * self.edge[going], 1
        if near.any():
            block, _ = self._leading(flat[near], u[near], value[near], going[near], CRITICAL)
            others = eigenvalues(block)[:, :-1] > NEAR * self.edge[going[near], None]
            self.critical[going[near]] += others.sum(axis=1)

    def _leading(
        self, flat: Float, u: Float, value: Float, going: Whole, k: int
    ) -> tuple[Float, Float]:
        """The Hessian in the span of its k leading eigenvectors, and these `[network, k, P]`."""
        if k == 1:
            return value[:, None, None], u[:, None]
        hessian = LinearHessian(self.regression, self.architecture, flat)
        deflated: Hessian = hessian
        found = [hessian.restrict(u)]
        for i in range(k - 1):
            deflated = Deflated(deflated, value, found[-1])
            begin = hessian.restrict(self.others[going, i] + self._random)
            value, _, _, vector = lanczos(deflated, begin, _OTHERS_TOLERANCE, _OTHERS_PRODUCTS)
            found.append(vector)
            self.others[going, i] = hessian.lift(vector)
        basis = np.linalg.qr(np.stack(found, axis=2))[0].transpose(2, 0, 1)
        images = np.stack([hessian.product(one) for one in basis])
        return np.einsum("anp,bnp->nab", images, basis), np.stack(list(map(hessian.lift, basis)), 1)

    def _push(
        self, flat: Float, u: Float, value: Float, gradient: Float, going: Whole
    ) -> tuple[Float, Float, Yes]:
        """The force of the swing in order 1, its variance, whether it has several directions."""
        push, q = np.zeros_like(flat), np.zeros(len(flat))
        several = np.zeros(len(flat), dtype=bool)
        for k in range(1, CRITICAL + 1):
            chosen = np.flatnonzero(self.critical[going] == k)
            if not len(chosen):
                continue
            some = going[chosen]
            block, vectors = self._leading(flat[chosen], u[chosen], value[chosen], some, k)
            third = np.stack([self._third(flat[chosen], vectors, i, j) for i, j in pairs(k)], 1)
            gram, along = third @ third.transpose(0, 2, 1), third @ gradient[chosen, :, None]
            over = block - self.edge[some, None, None] * np.eye(k)
            x = swing_covariance(gram, RETURN / self.rates[some, None, None] * over, along[:, :, 0])
            weights = [x[:, i, j] * (1.0 if i == j else 2.0) for i, j in pairs(k)]
            push[chosen] = 0.5 * np.einsum("nm,nmp->np", np.stack(weights, 1), third)
            q[chosen] = np.trace(x, axis1=1, axis2=2)
            if k > 1:
                spread = eigenvalues(x)
                several[chosen] = spread[:, -2] > _SHARE * spread[:, -1]
        return push, q, several

    def _third(self, flat: Float, u: Float, i: int, j: int) -> Float:
        """D^3R[u_i, u_j], by polarisation."""
        data, network = self.regression, self.architecture
        if i == j:
            return sharpness_gradient(data, network, flat, u[:, i])
        plus, minus = u[:, i] + u[:, j], u[:, i] - u[:, j]
        of_plus = sharpness_gradient(data, network, flat, plus)
        return 0.25 * (of_plus - sharpness_gradient(data, network, flat, minus))

    def _orbit(self, flat: Float, u: Float, going: Whole) -> tuple[Float, Float, Float, Yes]:
        """Velocity, q = x^2, mean excess risk of the two ends, and whether there is an orbit."""
        slope = slope_along(self.regression, self.architecture, flat, u, TERMS)
        m, q, found = line_orbit(slope, self.edge[going], self.swing[going] ** 2)
        x = np.sqrt(q)
        (w_up, up), (w_down, down) = (self._at(flat + s[:, None] * u) for s in (m + x, m - x))
        excess = 0.5 * (self._excess(w_up) + self._excess(w_down))
        mean = 0.5 * (up + down)
        along = np.einsum("ni,ni->n", mean, u) + self.edge[going] * m
        return along[:, None] * u - mean, q, excess, found

    def _at(self, flat: Float) -> tuple[Float, Float]:
        """w and the gradient."""
        layers, data = self.architecture.split(flat), self.regression
        b = backward(layers, self.architecture.p)
        a = forward(layers, 2.0 * (b[0] - data.w_star) @ data.sigma)
        parts = [x[:, :, None] * y[:, None, :] for x, y in zip(b[1:], a, strict=True)]
        return b[0], self.architecture.join(parts)

    def _excess(self, w: Float) -> Float:
        error = (w - self.regression.w_star) @ self.regression.sigma_root
        return np.asarray(np.einsum("ni,ni->n", error, error))

    def distance(self, going: Whole) -> Float:
        """|w - w*|^2 of the middle."""
        w = backward(self.architecture.split(self.flat[going]), self.architecture.p)[0]
        return np.asarray(np.sum((w - self.regression.w_star) ** 2, axis=1))
