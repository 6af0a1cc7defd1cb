"""Made-up data: the paper's Gaussian recipe, chosen covariance spectra, whitened data.

Each generator returns `Samples`; the same seed gives the same rows on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import Float, numbers
from flatmin.core.checks import check_choice, check_count, check_nonnegative, check_positive
from flatmin.core.errors import SettingError
from flatmin.core.seeds import generator
from flatmin.data.samples import Samples
from flatmin.data.tables.table import LARGEST

MOST_NOISE = 1e100


def gaussian_samples(
    n: int = 50, d: int = 5, noise: float = 1.0, seed: int = 0, targets: int = 1
) -> Samples:
    """Gaussian data scaled so that |w*| = 1 (Marion and Chizat 2024, Appendix C).

    X, w_true and e are independent standard Gaussians, y0 = X w_true + noise e, w0 the least-norm
    least-squares solution of (X, y0), and y = y0 / |w0|. For several targets w_true is d x m and
    the norm is that of Frobenius.

    >>> round(gaussian_samples(n=50, d=5, seed=0).regression().w_star_norm, 12)
    1.0
    """
    return gaussian_split(n, d, noise, seed, targets)[0]


def gaussian_split(
    n: int = 50, d: int = 5, noise: float = 1.0, seed: int = 0, targets: int = 1
) -> tuple[Samples, Samples]:
    """The rows of `gaussian_samples` and as many fresh ones from the same model, for testing.

    y_test = (X_test w_true + noise e_test) / |w0|, with the w_true and |w0| of the training rows.
    """
    n, d, targets = _rows(n), check_count("d", d), check_count("targets", targets)
    noise = _noise(noise)
    rng = generator(seed, "gaussian")
    tail = () if targets == 1 else (targets,)
    X, w_true = rng.standard_normal((n, d)), rng.standard_normal((d, *tail))
    y = X @ w_true + noise * rng.standard_normal((n, *tail))
    X_test = rng.standard_normal((n, d))
    y_test = X_test @ w_true + noise * rng.standard_normal((n, *tail))
    norm = np.linalg.norm(np.linalg.lstsq(X, y, rcond=None)[0])
    return Samples.from_arrays(X, y / norm), Samples.from_arrays(X_test, y_test / norm)


def spectrum_samples(
    n: int,
    eigenvalues: npt.ArrayLike | None = None,
    *,
    d: int | None = None,
    condition_number: float | None = None,
    alignment: str | Sequence[float] = "spread",
    noise: float = 0.0,
    seed: int = 0,
) -> Samples:
    """Data whose Sigma has the chosen eigenvalues and whose w* lies on them as chosen, |w*| = 1.

    X = sqrt(n) Q diag(sqrt(lambda)) V' with Q (n x d) orthonormal and V a uniformly random
    rotation; w* = V c; y = X w* + noise sqrt(n) q, where q is a unit vector orthogonal to X, so
    R_min = noise^2. The eigenvalues are given, or d of them run from 1 / condition_number to 1 in
    equal ratios. `alignment` chooses c: "spread" (equal magnitudes, random signs), "weak" (on
    the lower half of the spectrum), "strong" (on the upper half), or one weight per eigenvalue.

    >>> problem = spectrum_samples(20, [1.0, 2.0, 4.0], alignment=[0, 0, 1]).regression()
    >>> problem.eigenvalues.round(12), round(problem.a, 12)
    (array([1., 2., 4.]), 4.0)
    """
    if eigenvalues is not None:
        if d is not None or condition_number is not None:
            raise SettingError("give either eigenvalues or d and condition_number, not both")
        spectrum = numbers("eigenvalues", eigenvalues)
        if spectrum.ndim != 1 or not spectrum.size:
            raise SettingError(f"eigenvalues has shape {spectrum.shape}; expected a list")
        if not np.all((spectrum > 0) & (spectrum < LARGEST)):
            raise SettingError("eigenvalues must be positive and finite, every one")
    else:
        if d is None or condition_number is None:
            raise SettingError("give either eigenvalues or both d and condition_number")
        d = check_count("d", d)
        condition_number = check_positive("condition_number", condition_number)
        if not 1 <= condition_number <= 1e30:
            raise SettingError(f"condition_number must be from 1 to 1e30, got {condition_number}")
        if d == 1 and condition_number != 1:
            raise SettingError(f"condition_number must be 1 with d = 1, got {condition_number}")
        spectrum = np.geomspace(1 / condition_number, 1.0, d)
    n, size, noise = _rows(n), len(spectrum), _noise(noise)
    rng = generator(seed, "spectrum")
    if n < size + (noise > 0):
        least = f"{size + 1} (d + 1, as there is noise)" if noise > 0 else f"{size} (d)"
        raise SettingError(f"n must be at least {least}, got {n}")
    c = _coefficients(alignment, spectrum, rng)
    frame = orthonormal(rng, n, min(n, size + 1))
    V = orthonormal(rng, size, size)
    left = frame[:, :size] * math.sqrt(n)
    y = left @ (np.sqrt(spectrum) * c)
    if noise > 0:
        y = y + noise * math.sqrt(n) * frame[:, size]
    return Samples.from_arrays((left * np.sqrt(spectrum)) @ V.T, y)


def whitened_samples(n: int = 50, d: int = 5, noise: float = 1.0, seed: int = 0) -> Samples:
    """Data with Sigma = I, w* uniform on the unit sphere and R_min = noise^2.

    >>> problem = whitened_samples(n=30, d=4, noise=0.5).regression()
    >>> round(problem.condition_number, 12), round(problem.risk_min, 12)
    (1.0, 0.25)
    """
    return spectrum_samples(n, np.ones(check_count("d", d)), noise=noise, seed=seed)


def _coefficients(
    alignment: str | Sequence[float], spectrum: Float, rng: np.random.Generator
) -> Float:
    """The unit vector c of coefficients of w* on the eigenvectors."""
    d = len(spectrum)
    if isinstance(alignment, str):
        order = np.argsort(spectrum, kind="stable")
        half = (d + 1) // 2
        places = {"spread": order, "weak": order[:half], "strong": order[d - half :]}
        c = np.zeros(d)
        c[places[check_choice("alignment", alignment, places)]] = 1.0
        c = c * rng.choice([-1.0, 1.0], size=d)
    else:
        c = numbers("alignment", alignment)
        if c.shape != (d,) or not np.all(np.isfinite(c)) or not np.any(c):
            raise SettingError(f"alignment must be {d} finite weights, not all zero")
        c = c / np.abs(c).max()
    return np.asarray(c / np.linalg.norm(c))


def _rows(n: int) -> int:
    n = check_count("n", n)
    if n < 2:
        raise SettingError(f"n must be at least 2, got {n}")
    return n


def orthonormal(rng: np.random.Generator, rows: int, columns: int) -> Float:
    """Orthonormal columns, uniformly distributed."""
    # The signs make the triangular factor's diagonal positive: only then is Q uniform.
    q, r = np.linalg.qr(rng.standard_normal((rows, columns)))
    return np.asarray(q * np.where(np.diag(r) < 0, -1.0, 1.0))


def _noise(value: float) -> float:
    """A size of noise whose square is a number."""
    noise = check_nonnegative("noise", value)
    if noise > MOST_NOISE:
        raise SettingError(f"noise must be at most {MOST_NOISE:g}, got {noise:g}")
    return noise
