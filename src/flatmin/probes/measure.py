"""The largest eigenvalue as an interval: products until it is narrow, or the budget ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypedDict

import numpy as np
from scipy.special import stdtrit

from flatmin.core.arrays import Float
from flatmin.core.checks import check_count, check_positive
from flatmin.core.errors import DataError, SettingError
from flatmin.probes.lanczos import Lanczos, Operator, Vector
from flatmin.probes.record import Along, Probe, Spectrum

# Products that differ by more than this share of the matrix are not those of one matrix: another
# way to them is tried. Without another, more is borne.
NOISE, LARGEST_NOISE = 1e-3, 3e-2
MOST_PRODUCTS = 500


class Model(Operator, Protocol):
    """The Hessian of a model."""

    data: str

    @property
    def how(self) -> str:
        """The way to products in use."""
        ...

    @property
    def spares(self) -> bool:
        """Whether a way that takes more memory would be more precise."""
        ...

    def another_way(self) -> bool:
        """Take the next way to products; False if there is none."""
        ...

    def vector(self, given: Any) -> Vector:
        """A direction as a flat vector."""
        ...

    def gradients(self) -> Iterator[Vector]:
        """The gradient of each batch."""
        ...


class Stop(TypedDict, total=False):
    """Where a measurement ends: the width asked for, its confidence, and products at most."""

    tolerance: float
    confidence: float
    budget: int | None
    seed: int


def largest(
    model: Model,
    *,
    tolerance: float = 1e-2,
    confidence: float = 0.999,
    budget: int | None = None,
    start: Any = None,
    seed: int = 0,
    quick: bool = False,
    news: float = 1.0,
    go_on: Callable[[], bool] = lambda: True,
) -> Probe:
    """The interval of the largest signed eigenvalue.

    A start is mixed with a random vector of the length `news` (see `Lanczos`). `go_on` is asked
    before every product but the first.

    `quick` ends already where the Ritz value has settled by its residual; the upper end is then as
    far away as what was shown leaves it.
    """
    check_positive("tolerance", tolerance)
    limit = _settings(confidence, budget)
    begun = time.perf_counter()
    krylov = Krylov(model, seed, None if start is None else [_unit(model, start)], news)
    low, value, high = -math.inf, math.nan, math.inf
    settled = False
    while krylov.taken < limit and not krylov.exhausted and (not krylov.taken or go_on()):
        krylov.extend()
        low, value, high = krylov.largest(confidence)
        narrow = high - low <= tolerance * abs(value)
        limited = high - low <= 6.0 * krylov.noise  # more products would hardly narrow it
        if (limited or krylov.exhausted) and not narrow and model.spares and krylov.taken < limit:
            krylov.again()
            continue
        settled = narrow or limited or krylov.exhausted or _settled(krylov, tolerance)
        if narrow or limited or (quick and settled):
            break
    coordinates = krylov.ritz()[1][:, -1]
    error = standard_error(model.shares, krylov.batch_values(coordinates))
    return Probe(
        low=low,
        value=value,
        high=high,
        settled=settled,
        confidence=confidence,
        tolerance=tolerance,
        data_error=error,
        other_samples=other_samples(value, error, len(model.shares)),
        products=krylov.taken,
        seconds=time.perf_counter() - begun,
        memory=krylov.memory,
        how=model.how,
        data=model.data,
        matrix=model.matrix,
        vector=krylov.vector(coordinates),
    )


def ends(
    model: Model,
    k: int,
    *,
    tolerance: float = 1e-2,
    confidence: float = 0.999,
    budget: int | None = None,
    seed: int = 0,
) -> Spectrum:
    """The top k and the bottom k, until each residual is within tolerance times the largest |H|."""
    check_positive("tolerance", tolerance)
    limit = _settings(confidence, budget)
    count = min(check_count("k", k), model.size)
    krylov = Krylov(model, seed)
    converged = False
    while krylov.taken < limit and not krylov.exhausted and not converged:
        krylov.extend()
        values, vectors = krylov.ritz()
        residuals = krylov.residuals(vectors)
        both = np.r_[residuals[:count], residuals[-count:]]
        enough = krylov.products >= min(2 * count, model.size)
        room = tolerance * np.abs(values).max()
        converged = bool(enough and both.max() <= room)
        coarse = krylov.noise > room and model.spares and krylov.taken < limit
        if coarse and (converged or krylov.exhausted):
            krylov.again()
            converged = False
    values, vectors = krylov.ritz()
    residuals = krylov.residuals(vectors) + krylov.noise
    top, bottom = slice(None, -count - 1, -1), slice(None, count)
    return Spectrum(
        top=values[top],
        top_residuals=residuals[top],
        bottom=values[bottom],
        bottom_residuals=residuals[bottom],
        low=krylov.smallest(confidence),
        high=krylov.largest(confidence)[2],
        confidence=confidence,
        products=krylov.taken,
        converged=converged or krylov.exhausted,
        how=model.how,
        top_vectors=[krylov.vector(one) for one in vectors[:, top].T],
        bottom_vectors=[krylov.vector(one) for one in vectors[:, bottom].T],
    )


def along(model: Model, direction: Any) -> Along:
    """Slope and curvature of the loss along a direction, or along the "gradient"."""
    shares = np.asarray(model.shares)
    slope = model.combine(list(model.gradients()), shares)
    v = _unit(model, slope if isinstance(direction, str) and direction == "gradient" else direction)
    curvatures = np.array([float(model.dots([v], part)[0]) for part in model.parts(v)])
    return Along(
        slope=float(model.dots([v], slope)[0]),
        curvature=float(shares @ curvatures),
        data_error=standard_error(model.shares, curvatures),
    )


class Krylov(Lanczos):
    """A basis that begins again where a way to products turns out wrong.

    Automatic differentiation can be wrong without an error: a derivative cut off inside a custom
    function gives a matrix that is not symmetric.
    """

    def __init__(
        self,
        model: Model,
        seed: int = 0,
        warm: list[Vector] | None = None,
        news: float = 1.0,
    ) -> None:
        super().__init__(model, seed, warm, news)
        self._model, self._start, self._before = model, (seed, warm, news), 0

    @property
    def taken(self) -> int:
        """All products, those of ways that were left among them."""
        return self._before + self.products

    def again(self) -> bool:
        """From the start, by the next way to products; False if there is none."""
        before = self.taken
        found = self._model.another_way()
        if found:
            super().__init__(self._model, *self._start)
            self._before = before
        return found

    def extend(self) -> None:
        """One more product."""
        super().extend()
        if self.asymmetry <= NOISE * self.size:
            return
        if self.again():
            self.extend()
        elif self.asymmetry > LARGEST_NOISE * self.size:
            hint = "finite differences see kinks, but for those of ReLU: try model.double()"
            raise DataError(
                "the products are not those of one symmetric matrix (they differ by "
                f"{self.asymmetry / self.size:.1g} of its size): does the model or the loss draw "
                "random numbers of its own, or is its gradient not the derivative of its value?"
                f"{f' ({hint})' if self._model.how == 'finite differences' else ''}"
            )


def standard_error(shares: list[float], values: Float) -> float | None:
    """Of a mean over batches: to first order, how far other samples would move an eigenvalue."""
    count = len(values)
    if count < 2:
        return None
    weights = np.asarray(shares)
    spread = np.sum(weights**2 * (values - weights @ values) ** 2)
    return float(np.sqrt(spread * count / (count - 1)))


def other_samples(value: float, error: float | None, batches: int) -> tuple[float, float] | None:
    """Student's interval of 95 % over the batches."""
    if error is None:
        return None
    room = float(stdtrit(batches - 1, 0.975)) * error
    return value - room, value + room


def _settings(confidence: float, budget: int | None) -> int:
    if not isinstance(confidence, (int, float)) or not 0.0 < confidence < 1.0:
        raise SettingError(f"confidence must lie between 0 and 1, got {confidence!r}")
    return MOST_PRODUCTS if budget is None else check_count("budget", budget)


def _unit(model: Model, given: Any) -> Vector:
    flat = model.vector(given)
    length = math.sqrt(float(model.dots([flat], flat)[0]))
    return model.combine([flat], np.array([1.0 / length]))


def _settled(krylov: Lanczos, tolerance: float) -> bool:
    """Whether the top Ritz value is off by less than the tolerance: by r^2/gap, the gap as seen."""
    if krylov.products < 2:
        return False
    values, vectors = krylov.ritz()
    residual = float(krylov.residuals(vectors)[-1])
    gap = max(float(values[-1] - values[-2]), residual)
    return residual**2 / gap <= 0.5 * tolerance * abs(float(values[-1]))
