"""The probes' numerics on NumPy vectors: no framework is needed for them."""

from __future__ import annotations

import numpy as np
import pytest

from flatmin.core.errors import DataError
from flatmin.probes.density import density, trace
from flatmin.probes.measure import along, ends, largest


class Matrices:
    """A mean of symmetric matrices, one a batch."""

    precision, error, matrix, how, data = 2.0**-52, 0.0, "matrix", "plain products", "none"
    spares = False

    def __init__(self, parts, shares, jitter=0.0):
        self._parts, self.shares, self.size = parts, shares, len(parts[0])
        self._noise, self._jitter = np.random.default_rng(0), jitter

    def parts(self, v):
        for one in self._parts:
            yield one @ v + self._jitter * self._noise.standard_normal(self.size)

    def gaussian(self, seed):
        return np.random.default_rng(seed).standard_normal(self.size)

    def dots(self, basis, v):
        return np.array([q @ v for q in basis])

    def combine(self, basis, coefficients):
        return sum(c * q for q, c in zip(basis, coefficients, strict=True))

    def vector(self, given):
        return np.asarray(given, dtype=float)

    def gradients(self):
        for one in self._parts:
            yield one[0]

    def another_way(self):
        return False


def example(jitter=0.0):
    rng = np.random.default_rng(1)
    parts = [(m + m.T) / 2 for m in rng.standard_normal((3, 40, 40))]
    shares = [0.5, 0.3, 0.2]
    whole = sum(s * m for s, m in zip(shares, parts, strict=True))
    return Matrices(parts, shares, jitter), parts, np.linalg.eigh(whole)


@pytest.mark.parametrize("tolerance", [0.1, 1e-3, 1e-8])
def test_the_interval_is_as_narrow_as_asked_for_and_right(tolerance):
    model, _, (values, _) = example()
    for seed in range(20):
        found = largest(model, tolerance=tolerance, seed=seed)
        assert found.low <= values[-1] <= found.high
        assert found.narrow


def test_the_data_error_is_that_of_the_batches_curvatures():
    model, parts, (_, vectors) = example()
    top = vectors[:, -1]
    curvatures = np.array([top @ one @ top for one in parts])
    shares = np.array(model.shares)
    spread = shares**2 @ (curvatures - shares @ curvatures) ** 2
    assert largest(model, tolerance=1e-10).data_error == pytest.approx(
        np.sqrt(1.5 * spread), rel=1e-4
    )


def test_both_ends_their_residuals_and_bounds():
    model, _, (values, _) = example()
    found = ends(model, 4, tolerance=1e-8)
    np.testing.assert_allclose(found.top, values[::-1][:4], atol=1e-7)
    np.testing.assert_allclose(found.bottom, values[:4], atol=1e-7)
    assert found.low <= values[0]
    assert values[-1] <= found.high
    loose = ends(model, 2, budget=8)
    for value, residual in zip(loose.top, loose.top_residuals, strict=True):
        assert np.abs(values - value).min() <= residual
    assert not loose.converged


def test_trace_and_density_within_their_errors():
    model, _, (values, _) = example()
    found = trace(model, vectors=100)
    assert abs(found.value - values.sum()) <= 5 * found.standard_error
    share, error = density(model, vectors=20, steps=40).above(0.0)
    assert abs(share - np.mean(values > 0)) <= 5 * error


def test_along_a_direction():
    model, parts, (values, vectors) = example()
    found = along(model, 7.0 * vectors[:, 3])
    assert found.curvature == pytest.approx(values[3], rel=1e-10)
    gradient = sum(s * m[0] for s, m in zip(model.shares, parts, strict=True))
    assert found.slope == pytest.approx(gradient @ vectors[:, 3])


def test_products_of_no_one_matrix_are_refused():
    with pytest.raises(DataError, match="not those of one symmetric matrix"):
        largest(example(jitter=0.5)[0], tolerance=1e-8)


def test_noise_widens_the_interval():
    model, _, (values, _) = example(jitter=1e-4)
    found = largest(model, tolerance=1e-8, budget=40)
    assert found.low <= values[-1] <= found.high
    assert not found.narrow
