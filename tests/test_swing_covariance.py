"""Several eigenvalues at the edge: the small convex problem, the eigenvectors, and a run."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import flatmin
import oracles
from flatmin.curvature.lanczos import Deflated, lanczos
from flatmin.curvature.linear import LinearHessian
from flatmin.data.generators import spectrum_samples
from flatmin.dynamics import central_force
from flatmin.dynamics.central_flow import central_flow
from flatmin.dynamics.swing_covariance import pairs, swing_covariance
from flatmin.network.ensemble import Ensemble
from test_central_flow import descent, midpoints

COUNT = 60


def problems(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random third derivatives, some of them nearly parallel, and gradients."""
    rng = np.random.default_rng(k)
    sizes = np.exp(rng.normal(size=(COUNT, len(pairs(k)), 1)))
    third = sizes * rng.normal(size=(COUNT, len(pairs(k)), 12)) + rng.normal(size=(COUNT, 1, 12))
    gradient = np.exp(rng.normal(size=(COUNT, 1))) * rng.normal(size=(COUNT, 12))
    back = rng.normal(size=(COUNT, k, k))
    back = 0.5 * (back + back.transpose(0, 2, 1))
    along = np.einsum("nmp,np->nm", third, gradient)
    return third @ third.transpose(0, 2, 1), back, along


def matrices(entries: np.ndarray, k: int) -> np.ndarray:
    found = np.zeros((len(entries), k, k))
    for m, (i, j) in enumerate(pairs(k)):
        found[:, i, j] = found[:, j, i] = entries[:, m]
    return found


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_covariance_meets_the_conditions_and_is_what_scipy_finds(k: int) -> None:
    gram, back, along = problems(k)
    x, b = swing_covariance(gram, back, along), back - matrices(along, k)
    twice = np.array([1.0 if i == j else 2.0 for i, j in pairs(k)])
    entries = np.stack([x[:, i, j] for i, j in pairs(k)], axis=1)
    left = matrices(0.5 * np.einsum("nab,nb->na", gram, twice * entries), k) - b
    size, length = np.trace(x, axis1=1, axis2=2), np.linalg.norm(b, axis=(1, 2))
    assert np.all(np.linalg.eigvalsh(x) >= 0.0)
    assert np.all(np.linalg.eigvalsh(left)[:, 0] >= -1e-9 * length)
    assert np.all(np.abs(np.einsum("nij,nij->n", x, left)) <= 1e-8 * length * np.maximum(size, 1.0))
    ranks = (np.linalg.eigvalsh(x) > 1e-6 * np.maximum(size, 1e-3)[:, None]).sum(axis=1)
    assert len(np.unique(ranks)) == k + 1  # every face occurs

    def value(c: np.ndarray, n: int) -> float:
        """Half of <X, A X> minus <B, X> at X = C C'."""
        square = c.reshape(k, k) @ c.reshape(k, k).T
        z = twice * np.array([square[i, j] for i, j in pairs(k)])
        return float(0.25 * z @ gram[n] @ z - np.sum(b[n] * square))

    rng = np.random.default_rng(0)
    for n in range(12):
        ours = value(np.linalg.cholesky(x[n] + 1e-15 * np.eye(k)).ravel(), n)
        others = [minimize(value, rng.normal(size=k * k), (n,), tol=1e-10).fun for _ in range(4)]
        assert ours == pytest.approx(min(others), abs=1e-6 * max(1.0, abs(ours)))


def test_an_eigenpair_that_is_known_is_passed_over() -> None:
    samples = flatmin.gaussian_samples(n=20, d=3, seed=4)
    network = flatmin.Architecture.mlp(3, 3)
    flat = flatmin.initialise(network, "gaussian", 0.8, 0, networks=2).flat()
    hessian = LinearHessian(samples.regression(), network, flat)
    start = hessian.restrict(np.random.default_rng(0).standard_normal(flat.shape))
    first, _, _, vector = lanczos(hessian, start, 1e-10, 200)
    second, _, _, other = lanczos(Deflated(hessian, first, vector), start, 1e-10, 200)
    dense = oracles.compiled(network)
    for w, *found in zip(flat, first, second, strict=True):
        expected = np.linalg.eigvalsh(dense(samples.X, samples.y, w)[1])[:-3:-1]
        np.testing.assert_allclose(found, expected, rtol=1e-8)
    np.testing.assert_allclose(np.einsum("ni,ni->n", vector, other), 0.0, atol=1e-8)


def test_two_eigenvalues_are_held_at_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where w* misses the strong directions, descent near the ceiling has two of them there."""
    samples = spectrum_samples(n=60, d=6, condition_number=100, alignment="weak", seed=0)
    network, data = flatmin.Architecture.mlp(6, 4), samples.regression()
    rate, began, steps = 0.95 * 2.0 / flatmin.predict(data, 4).exact, 60, 40
    start = flatmin.initialise(network, "gaussian", 0.3, 1, networks=21).flat()[[20]]
    paths = [midpoints(descent(samples, network, one, rate, began + steps + 3)) for one in start]
    begin = Ensemble.from_flat(network, np.array([path[began] for path in paths]))
    ends = np.array([path[began + steps] for path in paths])
    dense = oracles.compiled(network)
    error = {}
    for near in (np.inf, central_force.NEAR):
        monkeypatch.setattr(central_force, "NEAR", near)
        found = central_flow(data, begin, rate, steps, order=1).ensemble.flat()
        error[near] = np.linalg.norm(found - ends, axis=1)
        top = [np.linalg.eigvalsh(dense(samples.X, samples.y, w)[1])[-2:] for w in found]
        if near < np.inf:
            np.testing.assert_allclose(top, 2.0 / rate, rtol=2e-3)
        else:
            assert np.all(np.array(top)[:, 1] > 1.05 * 2.0 / rate)  # one alone is not held
    assert np.all(error[central_force.NEAR] < 0.7 * error[np.inf])
