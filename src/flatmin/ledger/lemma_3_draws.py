"""The random networks of Lemma 3: its bounds, the draws, and what is kept of each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Event, Lock

import numpy as np
from numpy.typing import NDArray

from flatmin.core.arrays import Float, Yes
from flatmin.core.checks import check_count, check_depth, check_positive, check_seed
from flatmin.core.errors import SettingError
from flatmin.core.seeds import generator
from flatmin.core.threads import over_each, thread_count
from flatmin.dynamics.descent import Progress
from flatmin.ledger.lemma_9 import rank_one_directions

Bool = Yes
Int = NDArray[np.intp]
Number = float | Float

STATEMENT = "lemma-3"
DRAWS = {4: 2000, 8: 1000, 16: 500, 32: 300}
"""Networks per (d, L), by d."""
LEAST_DIMENSION = 4
# Bytes of noise a block of draws may take.
_BLOCK_BYTES = 2**25
# Ratio of squared singular values below which they are not taken from A'A.
_SQUARED_CONDITION = 1e-6


def norm_ceiling(s: Number, u: Number) -> Float:
    """4 exp(s^2/2 + u), Lemma 3."""
    return np.asarray(4.0 * np.exp(s**2 / 2.0 + u))


def singular_value_floor(s: Number, u: Number, d: Number) -> Float:
    """exp(-2 s^2/d - u) / 4, Lemma 3."""
    return np.asarray(np.exp(-2.0 * s**2 / d - u) / 4.0)


def failure_bound(s: Number, u: Number, d: Number) -> Float:
    """8 exp(-d u^2 / (32 s^2)), Lemma 3."""
    return np.asarray(8.0 * np.exp(-d * u**2 / (32.0 * s**2)))


def theta_ball(s: Number, u: Number) -> Float:
    """exp(-2 s^2 - 4 u) / 64, Lemma 3: what every |theta_k|_2 may be."""
    return np.asarray(np.exp(-2.0 * s**2 - 4.0 * u) / 64.0)


@dataclass(frozen=True, eq=False)
class Extremes:
    """What is kept of the networks of one (d, L, s): logarithms of singular values, each once."""

    d: int
    L: int
    s: float
    us: Float
    norm: Float
    """max_k ln |W_k...W_1|_2 as `[draw]`."""
    smallest: Float
    """min_k ln smin(W_k...W_1) as `[draw]`."""
    pushed_norm: Float
    """The largest ln |W~_k...W~_1|_2 found over k and theta in the ball of u, `[draw, u]`."""
    pushed_smallest: Float
    """The least ln smin(W~_k...W~_1) found over k and theta in the ball of u, `[draw, u]`."""

    @classmethod
    def empty(cls, d: int, L: int, s: float, us: Float, draws: int) -> Extremes:
        """Room for `draws` networks."""
        one, many = (draws,), (draws, len(us))
        return cls(d, L, s, us, np.empty(one), np.empty(one), np.empty(many), np.empty(many))

    @property
    def draws(self) -> int:
        """How many networks."""
        return len(self.norm)

    def fails_tight(self, block: slice = slice(None)) -> Bool:
        """Breaks the proof's bounds at theta = 0, so it may fail for some theta: `[draw, u]`."""
        upper, lower = self._limits(2.0)
        return np.asarray(
            (self.norm[block, None] > upper) | (self.smallest[block, None] < lower), dtype=bool
        )

    def fails(self, block: slice = slice(None)) -> Bool:
        """Breaks the lemma's bounds at a theta of the ball: `[draw, u]`."""
        upper, lower = self._limits(1.0)
        return np.asarray(
            (self.pushed_norm[block] > upper) | (self.pushed_smallest[block] < lower), dtype=bool
        )

    def _limits(self, tighter: float) -> tuple[Float, Float]:
        upper = np.log(norm_ceiling(self.s, self.us) / tighter)
        return upper, np.log(singular_value_floor(self.s, self.us, self.d) * tighter)


def sample(
    seed: int,
    draws: int | dict[int, int] | None,
    dimensions: Sequence[int],
    depths: Sequence[int],
    scales: Sequence[float],
    us: Sequence[float],
    *,
    noise: float = 1.0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[Extremes]:
    """Draw the networks of a grid; one job for a thread is a block of draws of one (d, L).

    `noise` multiplies the weights' noise and not the s that is claimed for them: other than 1 it
    makes networks that the lemma is not about. No result depends on the number of threads.
    """
    check_seed(seed)
    grid = np.array(sorted(check_positive("u", u) for u in us))
    for d in dimensions:
        _check_dimension(d)
    found = [
        [Extremes.empty(d, check_depth(L), check_positive("s", s), grid, draws_for(d, draws))
         for s in scales]
        for d in dimensions
        for L in depths
    ]  # fmt: skip
    jobs = [(cell, block) for cell in found for block in _blocks(cell[0])]
    jobs.sort(key=lambda job: -_work(job[0][0], job[1]))
    lock = Lock()

    def work(job: int, cancelled: Event) -> None:
        cell, block = jobs[job]
        normal = draw_noise(seed, cell[0].d, cell[0].L, range(block.start, block.stop))
        for extremes in cell:
            if cancelled.is_set():
                return
            _measure(extremes, block, normal, noise)
            if progress is not None:
                with lock:
                    progress(len(normal))

    over_each(work, len(jobs), threads or thread_count())
    return [extremes for cell in found for extremes in cell]


def draw_noise(seed: int, d: int, L: int, draws: Iterable[int]) -> Float:
    """N_1..N_L of the draws as `[draw, layer, d, d]`, each from its own address (d, L, draw)."""
    return np.stack(
        [generator(seed, STATEMENT, d, L, draw).standard_normal((L, d, d)) for draw in draws]
    )


def _measure(extremes: Extremes, block: slice, normal: Float, noise: float) -> None:
    """Fill one block of draws."""
    factor = noise * extremes.s / np.sqrt(extremes.L * extremes.d)
    norms, smallest = log_extremes(normal, factor)
    extremes.norm[block], extremes.smallest[block] = norms.max(axis=1), smallest.min(axis=1)
    extremes.pushed_norm[block] = norms.max(axis=1)[:, None]
    extremes.pushed_smallest[block] = smallest.min(axis=1)[:, None]
    # Only a network that may fail and does not at theta = 0 needs a harder theta.
    unsure = extremes.fails_tight(block) & ~extremes.fails(block)
    rows, columns = np.flatnonzero(unsure.any(axis=1)), np.flatnonzero(unsure.any(axis=0))
    if len(rows) == 0:
        return
    layers = [np.eye(extremes.d) + factor * normal[rows, k] for k in range(extremes.L)]
    radius = theta_ball(extremes.s, extremes.us[columns])
    where = np.ix_(rows + block.start, columns)
    up = pushed(layers, np.argmax(norms[rows], axis=1), radius, 0)
    down = pushed(layers, np.argmin(smallest[rows], axis=1), -radius, -1)
    extremes.pushed_norm[where] = np.maximum(extremes.pushed_norm[where], up)
    extremes.pushed_smallest[where] = np.minimum(extremes.pushed_smallest[where], down)


def log_extremes(normal: Float, factor: float) -> tuple[Float, Float]:
    """ln |W_k...W_1|_2 and ln smin(W_k...W_1) as `[draw, layer]`, W_k = I + factor N_k."""
    draws, L, d, _ = normal.shape
    norms, smallest = np.empty((draws, L)), np.empty((draws, L))
    product: Float = np.broadcast_to(np.eye(d), (draws, d, d))
    for k in range(L):
        product = product + factor * (normal[:, k] @ product)
        norms[:, k], smallest[:, k] = extreme_singular_values(product)
    with np.errstate(divide="ignore"):
        return np.log(norms), np.log(smallest)


def extreme_singular_values(matrices: Float) -> tuple[Float, Float]:
    """The largest and the smallest singular value of each matrix.

    From the eigenvalues of A'A, which takes two thirds of the time of A's singular values and, for
    a condition number below 1e3, leaves an error of 1e-9 or less; other matrices are done again.
    """
    squares = np.linalg.eigvalsh(matrices.transpose(0, 2, 1) @ matrices)[:, [-1, 0]]
    poor = squares[:, 1] < _SQUARED_CONDITION * squares[:, 0]
    values = np.sqrt(np.maximum(squares, 0.0))
    if poor.any():
        values[poor] = np.linalg.svd(matrices[poor], compute_uv=False)[:, [0, -1]]
    return values[:, 0], values[:, 1]


def pushed(layers: Sequence[Float], at: Int, radius: Float, which: int) -> Float:
    """ln |W~_K...W~_1 x| for theta_k = radius c_k e_k' as `[network, radius]`, K - 1 = `at`.

    c_k and e_k are as in `rank_one_directions` and x = e_1 is a unit vector, so this is at most
    ln |W~_K...W~_1|_2 and at least ln smin(W~_K...W~_1).
    """
    left, right = rank_one_directions(layers, at, which)
    h = np.repeat(right[0][:, :, None], len(radius), axis=2)
    reached = np.empty((len(h), len(radius)))
    for k, w in enumerate(layers):
        along = np.einsum("ni,niu->nu", right[k], h) * radius / len(layers)
        h = w @ h + left[k][:, :, None] * along[:, None, :]
        reached[at == k] = np.linalg.norm(h[at == k], axis=1)
    with np.errstate(divide="ignore"):
        return np.log(reached)


def _blocks(extremes: Extremes) -> list[slice]:
    """Ranges of draws whose noise fits a block."""
    size = max(1, _BLOCK_BYTES // (8 * extremes.L * extremes.d**2))
    return [
        slice(first, min(first + size, extremes.draws)) for first in range(0, extremes.draws, size)
    ]


def _work(extremes: Extremes, block: slice) -> float:
    """About how much work a block is, to begin with the longest."""
    return float((block.stop - block.start) * extremes.L * extremes.d**2)


def draws_for(d: int, draws: int | dict[int, int] | None) -> int:
    """Networks for this d; of dimensions not named, as many as for the next larger one named."""
    if isinstance(draws, int):
        return check_count("draws", draws)
    table = DRAWS if draws is None else draws
    larger = [key for key in sorted(table) if key >= d]
    return check_count("draws", table[larger[0] if larger else max(table)])


def _check_dimension(d: int) -> None:
    if check_count("d", d) < LEAST_DIMENSION:
        raise SettingError(f"Lemma 3 extends to theta by Lemma 9 only for d >= 4, got d = {d}")
