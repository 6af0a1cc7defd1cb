"""The force on the middle of the swings of gradient descent at its edge of stability.

At the edge of stability gradient descent swings, W_t = M + (-1)^t x u, along the top eigenvector u
of the Hessian. The mean force on the middle M is grad R + (1/2) x^2 grad S + ..., so that the swing
pushes M towards flatter weights (self-stabilisation: Damian, Nichani and Lee 2023; central flows:
Cohen and others 2025). Two orders, for linear networks with one output:

**Order 1** keeps the first term, and takes for sigma^2 = x^2 what holds S at 2/eta:

    dM/dt = -(grad R + (1/2) sigma^2 grad S),
    sigma^2 = max(0, -2 <grad S, grad R> / |grad S|^2)  while S = 2/eta, and 0 below.

Computed with sigma^2 = max(0, 2 (gamma (S - 2/eta) - <grad S, grad R>) / |grad S|^2), which tends
to it as gamma grows and needs no search for the moment of arrival: S then never rises faster than
gamma (2/eta - S), and a start above the edge comes down as exp(-gamma t).

**Order 2** does not expand in x. On the line M + s u the swing is the orbit of period two of
gradient descent itself (`line_orbit`): between m + x and m - x. M moves by the mean of the two
gradients across u and follows the valley's bottom along it,

    dM/dt = -(I - u u') (grad R(M + (m+x) u) + grad R(M + (m-x) u))/2 + (2/eta) m u.

Without an orbit M moves by gradient flow below the edge (the same, as x goes to 0), and by order 1
above it. S is not held at 2/eta: a swing of finite size is balanced where S at its middle is lower,
and a swing that is no longer needed does not stop at once, it dies out as it does in descent.

One eigenvalue is taken to be critical.
"""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.curvature import sharpness
from flatmin.curvature.directional import sharpness_gradient, slope_along
from flatmin.curvature.linear import backward, forward
from flatmin.data.regression import Regression
from flatmin.dynamics.line_orbit import TERMS, line_orbit
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble

# Heun's method with h = eta/2 is stable up to S = 4/eta.
SUBSTEPS = 2
# gamma, in units of 1/eta.
RETURN = 0.5
_SHARPNESS_TOLERANCE = 1e-6


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
        self.sharpness, self.residual, self.swing = np.zeros((3, len(flat)))
        self.excess, self.mean_excess, self.gradient = np.zeros((3, len(flat)))

    def velocity(self, going: Whole, fresh: bool = False) -> Float:
        """dM/dt at the present weights; what is known of the networks is brought up to date."""
        return self._velocity(self.flat[going], going, fresh, keep=True)

    def advance(self, going: Whole, velocity: Float) -> None:
        """One step of descent's time, by Heun's method, from a known velocity."""
        h = (self.rates[going] / SUBSTEPS)[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            for part in range(SUBSTEPS):
                if part:
                    velocity = self._velocity(self.flat[going], going)
                there = self.flat[going] + h * velocity
                self.flat[going] += 0.5 * h * (velocity + self._velocity(there, going))

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
        if self.order == 1:
            velocity, q = self._first_order(flat, u, top.value, gradient, going, _all(flat))
            excess = self._excess(w) + 0.5 * top.value * q
        else:
            velocity, q, excess = self._second_order(flat, u, top.value, gradient, going)
        self.swing[going] = np.sqrt(q)
        if keep:
            self.sharpness[going], self.residual[going] = top.value, top.residual
            self.gradient[going] = np.linalg.norm(gradient, axis=1)
            self.excess[going], self.mean_excess[going] = self._excess(w), excess
        return velocity

    def _first_order(
        self, flat: Float, u: Float, value: Float, gradient: Float, going: Whole, chosen: Yes
    ) -> tuple[Float, Float]:
        """The velocity and sigma^2; of networks that are not chosen sigma^2 is 0."""
        q, push = np.zeros(len(flat)), np.zeros_like(flat)
        if chosen.any():
            slope = sharpness_gradient(self.regression, self.architecture, flat[chosen], u[chosen])
            back = RETURN / self.rates[going][chosen] * (value - self.edge[going])[chosen]
            along = np.einsum("ni,ni->n", slope, gradient[chosen])
            square = np.maximum(np.einsum("ni,ni->n", slope, slope), np.finfo(float).tiny)
            q[chosen] = np.maximum(0.0, 2.0 * (back - along) / square)
            push[chosen] = 0.5 * q[chosen, None] * slope
        return -(gradient + push), q

    def _second_order(
        self, flat: Float, u: Float, value: Float, gradient: Float, going: Whole
    ) -> tuple[Float, Float, Float]:
        """The velocity, q = x^2 and the mean excess risk of the two ends of the swing."""
        slope = slope_along(self.regression, self.architecture, flat, u, TERMS)
        m, q, found = line_orbit(slope, self.edge[going], self.swing[going] ** 2)
        x = np.sqrt(q)
        (w_up, up), (w_down, down) = (self._at(flat + s[:, None] * u) for s in (m + x, m - x))
        excess = 0.5 * (self._excess(w_up) + self._excess(w_down))
        mean = 0.5 * (up + down)
        along = np.einsum("ni,ni->n", mean, u) + self.edge[going] * m
        above = ~found & (value > self.edge[going])
        other, sigma = self._first_order(flat, u, value, gradient, going, above)
        velocity = np.where(found[:, None], along[:, None] * u - mean, other)
        excess = excess + 0.5 * value * sigma
        return velocity, np.where(found, q, sigma), excess

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


def _all(flat: Float) -> Yes:
    return np.ones(len(flat), dtype=bool)
