"""The flow's error estimate against a reference with more digits: never below the difference."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate._ivp import dop853_coefficients

from flatmin.data.samples import Samples
from flatmin.dynamics.flow import flow
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.theory.minimisers import flattest_minimiser

LONG = np.longdouble
A, B, E3, E5 = (
    x.astype(LONG)
    for x in (
        dop853_coefficients.A[:12, :12],
        dop853_coefficients.B,
        dop853_coefficients.E3,
        dop853_coefficients.E5,
    )
)


def reference(data, architecture, flat, end):
    """Gradient flow in extended precision by the method of Dormand and Prince, to 1e-17."""
    sigma, target = data.sigma.astype(LONG), np.atleast_2d(data.w_star.T).astype(LONG)
    p = np.eye(architecture.widths[-1]) if architecture.output is None else architecture.p[None]

    def slope(y):
        layers = architecture.split(y)
        b = [p.astype(LONG)]
        for w in reversed(layers):
            b.append(b[-1] @ w)
        b.reverse()
        a, parts = (2 * (b[0] - target) @ sigma).T, []
        for k, w in enumerate(layers):
            parts.append(-(b[k + 1].T @ a.T).ravel())
            a = w @ a
        return np.concatenate(parts)

    y, t, h, end = flat.astype(LONG), LONG(0), LONG(1e-3), LONG(end)
    while t < end:
        h = min(h, end - t)
        slopes = np.zeros((13, y.size), LONG)
        slopes[0] = slope(y)
        for stage in range(1, 12):
            slopes[stage] = slope(y + h * (A[stage, :stage] @ slopes[:stage]))
        new = y + h * (B @ slopes[:12])
        slopes[12] = slope(new)
        scale = LONG(1e-17) * (1e-3 + abs(y))
        fifth, third = (np.linalg.norm((e @ slopes) / scale) for e in (E5, E3))
        error = h * fifth**2 / np.sqrt((fifth**2 + third**2 / 100) * y.size) if fifth else LONG(0)
        if error < 1:
            t, y = t + h, new
        h *= min(LONG(5), max(LONG(0.2), LONG(0.9) * (error + LONG(1e-30)) ** LONG(-0.125)))
    return y


@pytest.mark.skipif(
    np.finfo(LONG).eps == np.finfo(float).eps, reason="this machine has no longer numbers"
)
def test_the_error_estimate_is_never_below_the_difference():
    below = 0
    for case in range(40):
        rng = np.random.default_rng(case)
        d, depth = (int(x) for x in rng.integers((1, 1), (4, 5)))
        targets = 1 if case % 3 else 2
        X = rng.standard_normal((20, d)) * 10.0 ** rng.uniform(-1.0, 0.0, d)
        Y = X @ rng.standard_normal((d, targets)) + 0.1 * rng.standard_normal((20, targets))
        data = Samples.from_arrays(X, Y[:, 0] if targets == 1 else Y).regression()
        network = Architecture.mlp(d, depth)
        if targets > 1:
            network = Architecture.multivariate(d, depth, targets)
        flat = 10.0 ** rng.choice([-6, -3, -1, 0, 0.7]) * rng.standard_normal(network.parameters)
        if case % 5 == 0 and targets == 1:
            flat = network.join(flattest_minimiser(data, network))
        rtol, end = 10.0 ** -rng.choice([5, 8, 10, 13]), float(rng.choice([1e-9, 1e-2, 1.0, 3.0]))
        out = flow(data, Ensemble.from_flat(network, flat[None]), rtol=rtol, end=end)
        exact = reference(data, network, flat, out.extras["time"][0])
        apart = float(np.linalg.norm(out.ensemble.flat()[0] - exact))
        assert apart <= out.extras["error"][0], case
        eps = np.finfo(float).eps
        below += out.extras["error"][0] < 1e-13 * np.linalg.norm(flat)
        if out.steps[0] and network.depth > 1:
            assert out.extras["drift"][0] >= eps * np.sum(flat**2) / network.depth
        assert out.distance[0] >= (eps * np.linalg.norm(data.w_star)) ** 2
    assert below >= 10  # cases whose estimate is rounding
