"""The upper end from a random start: coverage on many matrices, and orthonormal polynomials."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy.linalg import eigh_tridiagonal
from scipy.stats import binom, norm

from flatmin.theory.random_start import least_weight, room_above


def tridiagonal(eigenvalues, start, steps):
    """Lanczos on a diagonal matrix, orthogonalised twice against every vector."""
    basis, alpha, beta = [start / np.linalg.norm(start)], [], []
    for _ in range(steps):
        image = eigenvalues * basis[-1]
        alpha.append(basis[-1] @ image)
        for _ in range(2):
            for q in basis:
                image = image - (q @ image) * q
        beta.append(np.linalg.norm(image))
        basis.append(image / beta[-1])
    return np.array(alpha), np.array(beta)


def upper_end(alpha, beta, log_weight):
    ritz = eigh_tridiagonal(alpha, beta[:-1], eigvals_only=True)
    return ritz[-1] + room_above(ritz, beta, log_weight)


SPECTRA = {
    "outliers": np.r_[np.linspace(-0.1, 0.5, 190), np.linspace(2, 10, 10)],
    "close": np.r_[np.linspace(-1, 1, 197), 9.98, 9.99, 10.0],
    "repeated": np.r_[np.linspace(-1, 1, 195), [10.0] * 5],
    "semicircle": np.cos(np.linspace(0, np.pi, 200)),
    "negative": np.linspace(-5, -1, 200),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("warm", [False, True])
def test_it_fails_no_more_often_than_it_says(name, warm):
    """With 60 % confidence 300 starts show whether 40 % is kept, at every number of products."""
    spectrum, top = SPECTRA[name], SPECTRA[name].max()
    confidence, runs, failures = 0.6, 300, 0
    rng = np.random.default_rng(3)
    # The warm start is orthogonal to the top: the worst that an earlier vector can be.
    earlier = np.where(spectrum < top, 1.0, 0.0) * (5.0 if warm else 0.0)
    for _ in range(runs):
        start = earlier + rng.standard_normal(200)
        weight = least_weight(1 - confidence, 1.0, np.linalg.norm(start))
        alpha, beta = tridiagonal(spectrum, start, 12)
        ends = [upper_end(alpha[:k], beta[:k], weight) for k in range(1, 13)]
        failures += any(end < top * (1 - 1e-12 * np.sign(top)) for end in ends)
    assert failures <= binom.ppf(1 - 1e-6, runs, 1 - confidence)


def test_the_weight_is_that_of_a_gaussian():
    assert least_weight(0.1, 2.0, 3.0) == pytest.approx(
        2 * np.log(2.0 * norm.ppf(0.55) / 3.0), rel=1e-12
    )


def test_at_the_end_the_polynomial_has_the_value_asked_for():
    """p_k^2 from moments alone: sums of p_j^2 are corners of inverse matrices of moments."""
    rng = np.random.default_rng(0)
    spectrum, start = np.sort(rng.standard_normal(30)), rng.standard_normal(30)
    alpha, beta = tridiagonal(spectrum, start, 5)
    log_weight = -12.0
    x = upper_end(alpha, beta, log_weight)
    with mpmath.workdps(60):
        weights = [mpmath.mpf(w) for w in start**2 / np.sum(start**2)]
        powers = [[(mpmath.mpf(lam) - x) ** j for j in range(6)] for lam in spectrum]
        moments = mpmath.matrix(6, 6)
        for w, row in zip(weights, powers, strict=True):
            for i in range(6):
                for j in range(6):
                    moments[i, j] += w * row[i] * row[j]
        # At x itself: the corner of the inverse is the sum of p_0^2..p_k^2.
        square = (moments**-1)[0, 0] - (moments[:5, :5] ** -1)[0, 0]
        found = float(mpmath.log(square))
    assert found == pytest.approx(-log_weight, abs=1e-5)


def test_many_at_once_are_those_one_by_one():
    rng = np.random.default_rng(1)
    ritz, beta = rng.standard_normal((4, 6)), rng.uniform(0.1, 2.0, (4, 6))
    beta[2, 5] = 0.0
    found = room_above(ritz, beta, -25.0)
    assert [float(room_above(a, b, -25.0)) for a, b in zip(ritz, beta, strict=True)] == list(found)
    assert found[2] == 0.0


def test_an_invariant_basis_is_exact():
    alpha, beta = np.array([1.0, 2.0]), np.array([0.5, 0.0])
    top = np.linalg.eigvalsh([[1.0, 0.5], [0.5, 2.0]])[-1]
    assert upper_end(alpha, beta, -20.0) == pytest.approx(top, rel=1e-15)
