"""The upper end from a random start: coverage on many matrices, and Christoffel's function."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy.linalg import eigh_tridiagonal
from scipy.stats import binom, norm

from flatmin.theory.random_start import least_weight, upper_end


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
        weight = least_weight(confidence, 1.0, np.linalg.norm(start))
        alpha, beta = tridiagonal(spectrum, start, 12)
        ends = [upper_end(alpha[:k], beta[:k], weight) for k in range(1, 13)]
        failures += any(end < top * (1 - 1e-12 * np.sign(top)) for end in ends)
    assert failures <= binom.ppf(1 - 1e-6, runs, 1 - confidence)


def test_the_weight_is_that_of_a_gaussian():
    assert least_weight(0.9, 2.0, 3.0) == pytest.approx(
        2 * np.log(2.0 * norm.ppf(0.55) / 3.0), rel=1e-12
    )


def test_the_bound_is_christoffels_function():
    """At the upper end the least integral of P^2 with P(x) = 1 is the weight: by a linear solve."""
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
        # min c'Mc with c_0 = 1 (powers of lambda - x): 1 / (M^{-1})_{00}.
        least = 1 / (moments**-1)[0, 0]
        found = float(mpmath.log(least))
    # The end is found to a thousandth of its distance from the Ritz value.
    ritz = eigh_tridiagonal(alpha, beta[:-1], eigvals_only=True)[-1]
    assert x > ritz
    assert found == pytest.approx(log_weight, abs=0.02)


def test_an_invariant_basis_is_exact():
    alpha, beta = np.array([1.0, 2.0]), np.array([0.5, 0.0])
    top = np.linalg.eigvalsh([[1.0, 0.5], [0.5, 2.0]])[-1]
    assert upper_end(alpha, beta, -20.0) == pytest.approx(top, rel=1e-15)
