"""Which compiled kernel advances which networks.

A backend holds what all blocks share (data, widths, stopping rule) in the form its kernel wants and
advances one block at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.core.checks import check_positive
from flatmin.core.memory import first_cache
from flatmin.curvature import sharpness
from flatmin.curvature.multivariate import stand_in
from flatmin.data.samples import Problem
from flatmin.dynamics.measures import Task, below_saddles, error_of_map, units_of
from flatmin.dynamics.recording import Recording
from flatmin.dynamics.rule import Rule
from flatmin.lanes.compiling import wide_registers
from flatmin.lanes.entries import (
    COLUMNS,
    PLAIN,
    SHARP,
    SHARPNESS_COLUMNS,
    Rows,
    Spectrum,
    followed,
)
from flatmin.lanes.lanczos import BASIS, start_vector
from flatmin.lanes.layout import Held, Runs, Stop, Twins, Wide, linear, sampled
from flatmin.network.architecture import Architecture, Family
from flatmin.network.ensemble import Ensemble, lane_count

CHECK_EVERY = 16
# Layers up to this size have a kernel for their width (`lanes.held`; more would leave registers),
# compiled for ensembles whose runs are at least this long. Shorter ones take the lanes that one
# network has: eight would save less than a tenth of a second, and take two to compile.
_HELD_UNITS, _HELD_FLOPS = 8, 2e9
# Of the first cache, what the weights of a block may take beside all else that a step needs. A
# larger block of eight lanes is slower than two of four (with velocities at d = 5 and L = 10 it has
# 29 KB: 0.54 and 0.52 s against 0.43 and 0.46 s in a cache of 32 KB, but 0.30 against 0.42 and
# 0.48 s in one of 48 KB). Where a register holds four numbers, eight lanes leave the registers
# (d = 5, L = 10 on AVX2: twice the time of four).
_CACHE_SHARE = 2.0 / 3.0
# From this width on networks are stepped one by one (`lanes.wide`), where widths are fours; up to
# that with a kernel for the width (d = 20: 0.28 instead of 0.35 us a step), where registers are
# wide for two networks at a time (d = 20: 0.15 instead of 0.24 us; d = 64, L = 10: 3.8 instead of
# 5.0, on a Zen 5).
_WIDE_UNITS, _ROW_UNITS = 20, 64
# What a probe has of the norm of the eigenvector that it is added to: enough for one that overtakes
# by a thousandth to be noticed at a residual of 1e-6, and little to get rid of (at d = 5 and L = 10
# products beyond the first are 1032 with all of it, 929 with a tenth, 907 with 0.03).
_PROBE_SHARE = 0.03
# Beyond this excess risk, of the unit, a run has diverged: no product in a step overflows before.
_LIMITS = {"float64": 1e60, "float32": 1e25}
_RELATIVE_MOVE = 1e-11
# Where no better rule is known, this gradient norm, of the unit, counts as converged.
_DEFAULT_GRADIENT = 1e-12


# Kernels that measure sharpness and have been used, or will be: for steps without a measurement
# they do as well, and no other is compiled.
_MEASURING: set[Any] = set()


class Packed:
    """Networks in lanes: weights and what is beside them, per-lane numbers, start vectors.

    `weights` is `[block, number, lane]`; `rate`, `left`, `excess`, `gradient` and `distance` are
    `[block, lane]`. `extremes` `[block, 6, lane]` are those of a stride that was begun, as
    kernels have them; `vectors` `[block, dimension, lane]`, of dimension 0 if not asked for.
    """

    def __init__(
        self,
        members: Whole,
        weights: NDArray[Any],
        numbers: NDArray[Any],
        extremes: NDArray[Any],
        vectors: Float,
    ) -> None:
        self.members, self.weights, self.numbers = members, weights, numbers
        self.extremes, self.vectors = extremes, vectors
        self.rate, self.left, self.excess, self.gradient, self.distance = numbers
        self.runs = Runs(
            self.rate, self.left, self.excess, self.gradient, self.distance, extremes
        )  # fmt: skip

    def goes_on(self, block: int) -> bool:
        """Whether a network of this block has steps left to take."""
        return bool(np.any((self.rate[block] > 0) & (self.left[block] > 0)))


class Backend:
    """One kernel with its shared data."""

    def __init__(
        self,
        problem: Problem,
        architecture: Architecture,
        rule: Rule,
        tolerance: float | None,
        kind: np.dtype[Any],
        goal: float | None,
    ) -> None:
        self.kind, self._problem, self._architecture = kind, problem, architecture
        self.step_flops = rule.cost * self.flops(problem, architecture)
        probe = start_vector(self._probed())
        self._probe = probe / np.linalg.norm(probe)
        self._widths = (architecture.inputs, *architecture.widths)
        self._units = units_of(problem, architecture)
        squares, settled = self._small(tolerance), below_saddles(problem.regression(), architecture)
        if goal is not None:
            squares, settled = (np.inf, squares[1]), goal
        self._stop = Stop(CHECK_EVERY, *squares, settled, _LIMITS[kind.name] * self._units.risk)
        self._rule = rule.kernel

    def lanes(self, numbers: int, networks: int) -> int:
        """Lanes of a block, for so many numbers a network and so many networks a thread."""
        return lane_count(numbers, networks)

    @staticmethod
    def flops(problem: Problem, architecture: Architecture) -> float:
        """The flops of one step of gradient descent of one network."""
        raise NotImplementedError

    def _probed(self) -> int:
        """Of how many numbers the vector is that finds other eigenvectors."""
        return self._architecture.parameters

    def watches(self, recording: Recording) -> bool:
        """Whether entries hold excess risk, distance and gradient, with their extremes."""
        return True

    def first_vectors(self, networks: int) -> Float:
        """What measurements of sharpness begin with, `[network, number]`."""
        return np.tile(start_vector(self._probed()), (networks, 1))

    def _small(self, tolerance: float | None) -> tuple[float, float]:
        """What squared gradient norms count as small."""
        raise NotImplementedError

    def expect(self, steps: float) -> None:
        """Prepare for about so many steps of networks in all; no bit depends on it."""

    def expect_sharpness(self) -> None:
        """Prepare for the sharpness of one network along a run that will follow others."""

    def advance(
        self, packed: Packed, block: int, begin: int, steps: int, goes_on: bool = False
    ) -> None:
        """Take `steps` steps with one block, after `begin` steps so far.

        A block that goes on, with all its lanes, need not be measured at the end.
        """
        raise NotImplementedError

    @property
    def entry_kind(self) -> np.dtype[Any]:
        """Of the numbers in an entry."""
        return np.dtype(float)

    def columns(self, recording: Recording) -> tuple[str, ...]:
        """What an entry holds of a lane."""
        sharp = SHARPNESS_COLUMNS if "sharpness" in recording.quantities else ()
        return (*(COLUMNS if self.watches(recording) else ()), *sharp)

    def trace(
        self, packed: Packed, block: int, begin: int, steps: int, due: int, number: int,
        recording: Recording, rows: Rows,
    ) -> None:  # fmt: skip
        """Take `steps` steps with one block and put its entries into its rows.

        They are made after `due` steps, and again after `recording.every`, while there is room;
        the first is the one of this number in the whole run.
        """
        raise NotImplementedError


def choose(
    problem: Problem,
    architecture: Architecture,
    rule: Rule,
    tolerance: float | None,
    kind: np.dtype[Any],
    goal: float | None = None,
) -> Backend:
    """The backend for a problem and an architecture that fit each other.

    With a `goal`, runs end as soon as their excess risk is below it, whatever the gradient.
    """
    architecture.check_fits(problem)
    if tolerance is not None:
        tolerance = min(check_positive("tolerance", tolerance), 1e150)  # its square is a number
    backend: Backend = BACKENDS[architecture.family](
        problem, architecture, rule, tolerance, kind, goal
    )
    return backend


def expect_sharpness(problem: Problem, architecture: Architecture) -> None:
    """Runs of gradient descent to come are followed by one that records sharpness."""
    choose(problem, architecture, Rule(), None, np.dtype(float)).expect_sharpness()


def step_flops(problem: Problem, architecture: Architecture) -> float:
    """The flops of one step of gradient descent of one network."""
    flops: float = BACKENDS[architecture.family].flops(problem, architecture)
    return flops


class SamplesBackend(Backend):
    """Networks on rows (`lanes.samples_descent`), d of them for linear ones: see `stand_in`."""

    def __init__(self, problem: Any, architecture: Architecture, *how: Any) -> None:
        from flatmin.lanes.activations import code_of

        super().__init__(problem, architecture, *how)
        data = problem.regression()
        rows, floor = (stand_in(data), 0.0) if architecture.linear else (problem, data.risk_min)
        self._network = sampled(
            self._widths, architecture.biases, architecture.output or (), rows.X,
            np.atleast_2d(rows.y.T), code_of(architecture.activation_name), floor, self.kind,
        )  # fmt: skip

    @staticmethod
    def flops(problem: Problem, architecture: Architecture) -> float:
        """Six a weight and row; activations cost as much again and more."""
        if architecture.linear:
            return 6.0 * architecture.parameters * problem.d
        return 18.0 * architecture.parameters * problem.n

    def _small(self, tolerance: float | None) -> tuple[float, float]:
        limit = _DEFAULT_GRADIENT * self._units.gradient if tolerance is None else tolerance
        return limit * limit, 0.0  # a power would raise where this is infinite

    def _distance(self, flat: Float) -> Float:
        """|P - P*|_F^2; NaN for networks that compute no linear map."""
        if not self._architecture.linear:
            return np.full(len(flat), np.nan)
        task = Task.of(self._problem, self._architecture)
        error = error_of_map(self._architecture.split(flat), task)
        return np.asarray(np.sum(error**2, axis=(1, 2)))

    def advance(
        self, packed: Packed, block: int, begin: int, steps: int, goes_on: bool = False,
        rows: Float | None = None,
    ) -> None:  # fmt: skip
        """Steps by the compiled kernel; `rows` are entries of as many steps each."""
        from flatmin.lanes.samples_descent import descend_samples

        lanes = packed.weights.shape[2]
        if rows is None:
            rows = _blank(0, False, lanes, self.kind)
        descend_samples(
            (self.kind.type(0),) * lanes, packed.weights, self._network, packed.runs, self._stop,
            self._rule, begin, steps, steps // max(len(rows), 1), rows[None], block, block + 1,
        )  # fmt: skip
        diverged = ~np.isfinite(packed.gradient[block])
        packed.excess[block][diverged] = np.inf
        flat = np.where(diverged[:, None], 0.0, self._flat(packed, block))
        packed.distance[block] = np.where(diverged, np.inf, self._distance(flat))

    def _flat(self, packed: Packed, block: int) -> Float:
        return packed.weights[block, : self._architecture.parameters].T.astype(float)

    def trace(
        self, packed: Packed, block: int, begin: int, steps: int, due: int, number: int,
        recording: Recording, rows: Rows,
    ) -> None:  # fmt: skip
        """Entries of the first weights, and of as many steps as are due or of `every` each."""
        lanes, rest = (
            slice(rows.network, rows.network + packed.weights.shape[2]),
            rows.end - rows.entry,
        )
        out = rows.table[:, rows.entry : rows.end, lanes].transpose(1, 0, 2)
        if due == 0:
            out[:1] = self._entries(packed, block, begin, 0, 1, recording)
            out, rest, due = out[1:], rest - 1, recording.every
        if rest > 0 and steps > 0:
            out[:] = self._entries(packed, block, begin, due, rest, recording)
        elif steps > 0:
            self.advance(packed, block, begin, steps)

    def _entries(
        self, packed: Packed, block: int, begin: int, every: int, entries: int, recording: Recording
    ) -> Float:
        """Take `entries` times `every` steps; `[entry, quantity, lane]` as `lanes.entries`.

        By the kernel, or one at a time if there is what it does not know: sharpness, by Lanczos
        from the last eigenvector, and distances. The extremes of the distance are those of the
        steps at which sharpness is measured.
        """
        sharp = packed.vectors.size > 0
        known = not (sharp or (self._architecture.linear and "distance" in recording.quantities))
        if known and every > 0:
            out = _blank(entries, False, packed.weights.shape[2], self.kind)
            self.advance(packed, block, begin, every * entries, rows=out)
            return out
        out = _blank(entries, sharp, packed.weights.shape[2])
        one_by_one, extremes = min(recording.sharpness_steps, every), packed.extremes[block]
        for entry in range(entries):
            before = packed.left[block].copy()
            if not np.any((packed.rate[block] > 0) & (before > 0)):
                break
            at = begin + entry * every
            if one_by_one < every or every == 0:
                self.advance(packed, block, at, every - one_by_one)
            found = []
            for done in range(every - one_by_one, every) if every else (0,):
                if every:
                    self.advance(packed, block, at + done, 1)
                going = before - packed.left[block] == done + (every > 0)
                going &= np.isfinite(packed.excess[block])
                if every == 0:
                    going &= packed.rate[block] > 0
                distance = packed.distance[block]
                extremes[2] = np.minimum(extremes[2], distance)
                extremes[3] = np.maximum(extremes[3], distance)
                if sharp and going.any():
                    found.append(
                        self._sharpness(packed, block, going, recording.sharpness_tolerance)
                    )
            rows = [packed.excess[block], distance, packed.gradient[block]]
            for i, row in enumerate(rows[:3]):
                low, high = extremes[2 * i], extremes[2 * i + 1]
                rows += [np.minimum(low, row), np.maximum(high, row)]
            if found:
                value, residual, products = np.stack(found, axis=1)
                rows += [value[-1], residual[-1], products.sum(axis=0)]
                rows += [value.min(axis=0), value.max(axis=0)]
            for column, row in enumerate(rows):
                out[entry, column, going] = row[going]
            extremes[0::2], extremes[1::2] = np.inf, -np.inf
        return out

    def _sharpness(self, packed: Packed, block: int, whole: Yes, tolerance: float) -> list[Float]:
        vectors = packed.vectors[block, : len(self._probe)]
        found = sharpness(
            self._problem,
            Ensemble.from_flat(self._architecture, self._flat(packed, block)[whole]),
            tolerance=tolerance,
            certify=False,
            # A little of everything, so that an eigenvector that overtakes is noticed.
            start=vectors.T[whole] + 0.1 * self._probe,
        )
        columns = np.full((3, len(whole)), np.nan)
        columns[:, whole] = found.value, found.residual, found.products
        vectors[:, whole] = found.vector.T
        return list(columns)


class LinearBackend(Backend):
    """Linear networks with one output (`lanes.linear_descent`)."""

    def __init__(self, problem: Any, architecture: Architecture, *how: Any) -> None:
        super().__init__(problem, architecture, *how)
        data = problem.regression()
        self._network = linear(
            self._widths, architecture.p, data.sigma, data.w_star, self.kind
        )  # fmt: skip
        self._form: Held | Wide | None = None
        self._twins: Twins | None = None
        self._little = False
        self._basis = min(BASIS, self._coordinates())
        self._share = _PROBE_SHARE * self._probe
        inputs = self._widths[:-1]
        self._wide = min(inputs) >= _WIDE_UNITS and not any(d % 4 for d in inputs)
        if self._wide:
            self._form = Wide((0.0,) * (4 if any(d % 8 for d in inputs) else 8), ())

    def lanes(self, numbers: int, networks: int) -> int:
        """Wide networks are alone or in twos; what is held in registers has the first cache."""
        if self._wide:
            return 2 if self._twins is not None and networks > 1 else 1
        if isinstance(self._form, Held) and held_lanes(numbers) == 4:
            return 4
        return lane_count(numbers, 1 if self._little else networks)

    def expect(self, steps: float) -> None:
        """Square layers have a kernel of their own, where it is worth a compilation."""
        d, top = self._widths[0], self._widths[-1]
        self._little = steps * self.step_flops < _HELD_FLOPS
        if self._little or set(self._widths[:-1]) != {d}:
            return
        if max(d, top) <= _HELD_UNITS:
            self._form = Held((0.0,) * d, (0.0,) * top)
        elif isinstance(self._form, Wide) and d <= _ROW_UNITS:
            vector = self._form.vector
            self._form = Wide(vector, (0.0,) * (d // len(vector)))
            if wide_registers() and self._rule is None:
                self._twins = Twins((0.0,) * (d // 4))

    def expect_sharpness(self) -> None:
        """Its kernel does for the runs before as well."""
        lanes = self.lanes(self._architecture.parameters, 1)
        _MEASURING.add(self._kernel(lanes))

    @staticmethod
    def flops(problem: Problem, architecture: Architecture) -> float:
        """6 P for the layers, 2 d^2 for Sigma."""
        return 6.0 * architecture.parameters + 2.0 * architecture.inputs**2

    def _probed(self) -> int:
        return sum(columns for _, columns in self._architecture.shapes)

    def watches(self, recording: Recording) -> bool:
        """Only if they are asked for; what waits for its layers is known by them as well."""
        return recording.plain or "sharpness" not in recording.quantities

    def first_vectors(self, networks: int) -> Float:
        """Nothing is known of eigenvectors yet."""
        return np.zeros((networks, followed(self._probed(), self._architecture.depth)))

    @property
    def entry_kind(self) -> np.dtype[Any]:
        """As the kernel writes them."""
        return self.kind

    def _coordinates(self) -> int:
        """In which the sharpness is found."""
        return sum(map(sum, self._architecture.shapes)) - self._widths[-1]

    def _small(self, tolerance: float | None) -> tuple[float, float]:
        """An absolute one, or one relative to |b_1|^4 (see `descent`)."""
        if tolerance is not None:
            return tolerance * tolerance, 0.0
        size = np.sqrt(self._architecture.depth) * self._units.weight
        move = _RELATIVE_MOVE * 2.0 * self._problem.regression().smallest_eigenvalue * size
        return 0.0, float(move**2)

    def advance(
        self, packed: Packed, block: int, begin: int, steps: int, goes_on: bool = False,
        rows: Rows | None = None, every: int = 1, due: int = 0, spectrum: Spectrum | None = None,
    ) -> None:  # fmt: skip
        """Steps by the compiled kernel; `rows` are for entries after `due` steps, and after `every`
        again."""
        from flatmin.lanes.linear_descent import descend

        lanes = packed.weights.shape[2]
        if rows is None:
            rows = Rows(np.empty((0, 0, 0), self.kind), 0, 0, 0)
        if spectrum is not None:
            _MEASURING.add(self._kernel(lanes))
        elif self._kernel(lanes) in _MEASURING:
            spectrum = self._spectrum(packed, 0, 1, False, 0.0)
        descend(
            (self.kind.type(0),) * lanes, packed.weights, self._network, packed.runs, self._stop,
            self._rule, self._form_of(lanes), begin, steps, goes_on, every, due, rows, spectrum,
            block, block + 1,
        )  # fmt: skip

    def _kernel(self, lanes: int) -> tuple[object, ...]:
        """What tells compiled forms of the kernel apart, but for whether sharpness is measured."""
        return lanes, self.kind, self._form_of(lanes), self._rule and self._rule[1] is None

    def _form_of(self, lanes: int) -> Held | Twins | Wide | None:
        """In which blocks of so many lanes are stepped."""
        return self._twins if self._wide and lanes == 2 else self._form

    def _spectrum(
        self, packed: Packed, number: int, window: int, steady: bool, tolerance: float
    ) -> Spectrum:
        return Spectrum(
            packed.vectors, self._share, number, window, steady, tolerance, 2000, self._basis
        )

    def trace(
        self, packed: Packed, block: int, begin: int, steps: int, due: int, number: int,
        recording: Recording, rows: Rows,
    ) -> None:  # fmt: skip
        """Entries by the compiled kernel."""
        spectrum = None
        if packed.vectors.size > 0:
            window, tolerance = recording.sharpness_steps, recording.sharpness_tolerance
            steady = window == 1 or window >= recording.every
            spectrum = self._spectrum(packed, number, window, steady, tolerance)
        self.advance(packed, block, begin, steps, False, rows, recording.every, due, spectrum)


def held_lanes(numbers: int) -> int:
    """At most so many lanes has a block of held networks of so many numbers each."""
    return 8 if wide_registers() and 8 * 8 * numbers <= _CACHE_SHARE * first_cache() else 4


BACKENDS: dict[Family, Any] = {
    Family.ONE_OUTPUT: LinearBackend,
    Family.SEVERAL_OUTPUTS: SamplesBackend,
    Family.SAMPLES: SamplesBackend,
}


def _blank(entries: int, sharp: bool, lanes: int, kind: Any = float) -> Float:
    """Entries `[entry, quantity, lane]` as `lanes.entries` has them, not filled."""
    return np.full((entries, PLAIN + SHARP * sharp, lanes), np.nan, dtype=kind)
