"""The engine of descent: runs in blocks of lanes, in rounds, with or without a trace.

All runs still going are packed into blocks of lanes, sorted by the steps they have left; a round
advances them by a number of steps that grows from round to round; then runs that ended are taken
out and the rest is packed again. So a run that diverged early costs nothing afterwards. Within a
round each block, or a part of its steps, is one job for a thread, cut into slices short enough that
progress can be shown and Ctrl-C answered. Neither rounds, blocks, threads nor slices change a run's
bits.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from threading import Event, Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatmin.core.arrays import Float, Whole, Yes, aligned
from flatmin.core.memory import check_memory
from flatmin.core.threads import over_each
from flatmin.dynamics.backends import Backend, Packed
from flatmin.dynamics.measures import LAYER_MEASURES, Task
from flatmin.dynamics.recording import Recording, Trace
from flatmin.lanes.entries import Rows
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import laid_out

Progress = Callable[[int], None]

_ROUNDS, _LONGEST = (256, 1024, 4096, 16384), 16 * 16384
# A round is cut into so many jobs a thread, if none has fewer flops than these, a few milliseconds:
# what a thread waits for the last of them is about a hundredth.
_JOBS, _PART_FLOPS = 100, 1e8
# Where a thread has many blocks, only so many of them are cut: a thread that takes a block from
# another has to fetch it, and each job costs Python twenty microseconds.
_IN_TURNS = 2
# Flops a slice may take: about a tenth of a second.
_SLICE_FLOPS = 1e9
# Numbers in weights whose layers are measured together: NumPy's calls cost more than small layers.
_MEASURED_AT_ONCE = 100_000


class Rounds:
    """The state of all runs between rounds, one row per network.

    `state` holds the weights and, after them, what the method's rule keeps beside them; runs that
    go on together stay packed.
    """

    def __init__(
        self,
        backend: Backend,
        task: Task,
        architecture: Architecture,
        state: Float,
        rates: Float,
        budget: Float,
        recording: Recording | None,
    ) -> None:
        self._backend, self._task, self._architecture = backend, task, architecture
        self.state: NDArray[Any] = state.astype(backend.kind)
        unknown = np.full((3, len(state)), np.nan)
        self._numbers = np.vstack([rates, budget, unknown])
        """Rate, steps left, excess risk, squared gradient and distance."""
        self._budget, self._taken = budget, 0
        self._packed: Packed | None = None
        self._recording, self._vectors = recording, np.empty((len(state), 0))
        self._layers = [] if recording is None else recording.layers
        self._waiting: dict[int, list[tuple[int, Whole, NDArray[Any]]]] = {}
        """Of each block: entries, networks and weights whose layers are yet to be measured."""
        self._kept = np.zeros(len(state), dtype=np.int64)
        """How many entries each run has."""
        self._table: Float | None = None
        """The trace `[column, entry, network]`, if it has just the columns of the backend."""
        self.trace = None if recording is None else self._blank_trace(recording)

    @property
    def left(self) -> Float:
        """Steps that each run has left."""
        return np.asarray(self._numbers[1])

    @property
    def measured(self) -> Float:
        """Excess risk, squared gradient and distance at the last weights, `[3, network]`."""
        return self._numbers[2:]

    @property
    def _going(self) -> Yes:
        return np.asarray((self._numbers[0] > 0.0) & (self.left > 0.0))

    def _blank_trace(self, recording: Recording) -> Trace:
        count = len(self.state)
        entries = 1 + int(self._budget.max()) // recording.every
        if "sharpness" in recording.quantities:
            self._vectors = self._backend.first_vectors(count)
        names, depth = recording.columns, self._architecture.depth
        layers = {
            name: (entries, count, LAYER_MEASURES[name].size(depth)) for name in recording.layers
        }
        numbers = float(len(names) * entries * count)
        numbers += sum(float(np.prod(shape)) for shape in layers.values())
        check_memory(
            f"a trace of {entries} entries of {count} networks", 8 * numbers + 32 * self.state.size
        )
        if recording.layers:
            self._initial = self._weights(self.state)
        # In one piece, which is not written before there is something to write.
        table = aligned((len(names), entries, count), filled=False)
        self._columns = columns = self._backend.columns(recording)
        self._squares = any("gradient" in name for name in columns)
        if set(columns) == set(names) and self._backend.entry_kind == table.dtype:
            self._table, filled = table, dict(zip(columns, table, strict=True))
            values = {name: filled[name] for name in names}
        else:
            values = dict(zip(names, table, strict=True))
        values |= {name: np.full(shape, np.nan) for name, shape in layers.items()}
        return Trace(step=np.arange(entries, dtype=np.int64) * recording.every, values=values)

    def _weights(self, state: NDArray[Any]) -> list[Float]:
        """W_k of each network, from its state."""
        parameters = self._architecture.parameters
        return self._architecture.matrices(state[:, :parameters].astype(float))

    def finish(self, threads: int, progress: Progress | None) -> None:
        """Rounds until every run has ended."""
        rounds = iter(_ROUNDS)
        length, going = next(rounds), self._going
        while going.any():
            # Little that is left is not worth another round.
            rest = int(self.left[going].max())
            self._round(rest if rest <= _ROUNDS[1] else length, threads, progress)
            before, going = going, self._going
            # Where none has ended there is nothing to pack.
            none = np.count_nonzero(going) == np.count_nonzero(before)
            length = next(rounds, min(2 * length, _LONGEST) if none else _ROUNDS[-1])
        self._unpack(done=True)
        self._end_trace()
        if progress is not None:
            # Steps that early ends have saved count as done.
            progress(int(self.left.sum()))

    def _round(self, length: int, threads: int, progress: Progress | None) -> None:
        """Advance every run still going by `length` steps, rounded up to whole entries."""
        if self._recording is not None:
            length = -(-length // self._recording.every) * self._recording.every
        packed = self._pack(threads)
        blocks, _, lanes = packed.weights.shape
        lock, most = Lock(), self._slice_steps(lanes)
        # A block left over for one thread would keep the others waiting: so the last blocks are
        # taken in turns, a part of their steps at a time, in parts that can be dealt out evenly.
        even = threads // gcd(blocks, threads)
        flops = length * self._step_flops(lanes)
        parts = even * round(min(flops / _PART_FLOPS, _JOBS * threads / blocks) / even)
        parts = min(max(parts, 1), length) if threads > 1 else 1
        whole = max(blocks - blocks % threads - _IN_TURNS * threads, 0)
        # Threads work on blocks far from each other: in a trace a line of one lies beside a line of
        # the next, and processors fetch lines in pairs (two threads, sharpness at every step: an
        # eighth of the time).
        apart = -(-blocks // threads)
        order = sorted(range(blocks), key=lambda block: block % apart)
        jobs = order[:whole] + order[whole:] * parts
        locks, done = [Lock() for _ in range(blocks)], [0] * blocks

        def work(job: int, cancelled: Event) -> None:
            block = jobs[job]
            with locks[block]:
                until = min(length, done[block] - (-length // (parts if job >= whole else 1)))
                while done[block] < until and not cancelled.is_set():
                    before = packed.left[block].sum() if progress is not None else 0.0
                    steps = min(most, until - done[block])
                    goes_on = done[block] + steps < length
                    begin = self._taken + done[block]
                    done[block] += self._advance(packed, block, begin, steps, goes_on)
                    if progress is not None:
                        with lock:
                            progress(int(before - packed.left[block].sum()))
                    if done[block] < length and not packed.goes_on(block):
                        done[block] = length
                if done[block] >= length:
                    self._measure_layers(block)

        over_each(work, len(jobs), threads)
        self._note(packed)
        self._taken += length

    def _slice_steps(self, lanes: int) -> int:
        """Steps that a slice may take."""
        return max(1, int(_SLICE_FLOPS / self._step_flops(lanes)))

    def _step_flops(self, lanes: int) -> float:
        """What a step of a block costs, with what is recorded of it."""
        recording = self._recording
        return self._backend.step_flops * lanes * (1.0 if recording is None else recording.cost)

    def _advance(self, packed: Packed, block: int, begin: int, most: int, goes_on: bool) -> int:
        """At most so many steps of one block, with the entries among them; how many it took."""
        recording = self._recording
        if recording is None:
            self._backend.advance(packed, block, begin, most, goes_on)
            return most
        every = recording.every
        missing = every - begin % every
        # The steps at which sharpness is measured are not cut.
        before = missing - min(recording.sharpness_steps, every)
        number, due = begin // every + 1, missing
        if most < missing and before > 0:
            steps, entries = min(most, before), 0
        else:
            # The rest of an entry that was begun, one entry with its layers, or many in one go.
            single = missing < every or bool(self._layers)
            entries = 1 if single else max(1, most // every)
            steps = missing + (entries - 1) * every
        if begin == 0:
            # and that of the first weights
            if self._layers:
                self._trace(packed, block, 0, 0, 0, 0, 1)
            else:
                number, due, entries = 0, 0, entries + 1
        if entries:
            self._trace(packed, block, begin, steps, due, number, entries)
        else:
            self._backend.advance(packed, block, begin, steps)
        return steps

    def _trace(
        self,
        packed: Packed,
        block: int,
        begin: int,
        steps: int,
        due: int,
        number: int,
        entries: int,
    ) -> None:
        """Steps of one block with so many entries, the first after `due` steps."""
        assert self.trace is not None
        assert self._recording is not None
        lanes = packed.weights.shape[2]
        members = packed.members[block * lanes : (block + 1) * lanes]
        until = max(min(number + entries, len(self.trace.step)), number)
        first, several = int(members[0]), len(members)
        beside = members.tolist() == list(range(first, first + several))
        if self._table is not None and beside and several == lanes:
            # Whole blocks of neighbours have their place in the trace.
            rows = Rows(self._table, number, until, first)
        else:
            shape = (len(self._columns), until - number, lanes)
            rows = Rows(np.empty(shape, self._backend.entry_kind), 0, until - number, 0)
        self._backend.trace(packed, block, begin, steps, due, number, self._recording, rows)
        place = slice(first, first + several) if beside else members
        found = rows.table[:, rows.entry : rows.end, rows.network : rows.network + several]
        if self._squares or rows.table is not self._table:
            self._keep(found, rows.table is self._table, slice(number, until), place)
        self._kept[place] = until
        if self._layers and until > number:
            self._wait(packed, block, number, members, ~np.isnan(found[0, 0]))

    def _keep(
        self, found: NDArray[Any], there: bool, entries: slice, networks: slice | Whole
    ) -> None:
        """Put a block's entries `[column, entry, network]` where they belong, if they are not."""
        assert self.trace is not None
        assert self._recording is not None
        values = self.trace.values
        for column, name in zip(found, self._columns, strict=True):
            square = "gradient" in name
            if name in values and (square or not there):
                values[name][entries, networks] = np.sqrt(column) if square else column

    def _wait(self, packed: Packed, block: int, entry: int, members: Whole, alive: Yes) -> None:
        """The layers of an entry are yet to be measured, of these networks of a block."""
        if alive.any():
            waiting = self._waiting.setdefault(block, [])
            state = packed.weights[block].T[: len(members)][alive]
            waiting.append((entry, members[alive], state))
            if len(waiting) * state.size >= _MEASURED_AT_ONCE:
                self._measure_layers(block)

    def _end_trace(self) -> None:
        """Where nothing was kept after the end of a run there is no number."""
        if self.trace is None or self._recording is None:
            return
        for kept in np.unique(self._kept):
            ended = np.flatnonzero(self._kept == kept)
            for name in self._recording.columns if kept < len(self.trace.step) else ():
                self.trace.values[name][kept:, ended] = np.nan

    def _measure_layers(self, block: int) -> None:
        """Measure the layers of a block's entries that wait for it."""
        if not (waiting := self._waiting.pop(block, None)):
            return
        assert self.trace is not None
        assert self._recording is not None
        entries = np.concatenate([np.full(len(some), first) for first, some, _ in waiting])
        networks = np.concatenate([some for _, some, _ in waiting])
        layers = self._weights(np.concatenate([state for *_, state in waiting]))
        initial = [w[networks] for w in self._initial]
        for name in self._recording.layers:
            measured = LAYER_MEASURES[name](layers, initial, self._task)
            self.trace.values[name][entries, networks] = measured

    def _pack(self, threads: int) -> Packed:
        """Runs still going, sorted by steps left so that the lanes of a block end together."""
        going = np.flatnonzero(self._going)
        members: Whole = going[np.argsort(self.left[going], kind="stable")]
        if self._packed is not None and np.array_equal(self._packed.members, members):
            return self._packed
        self._unpack()
        # Enough blocks for every thread.
        lanes = self._backend.lanes(self.state.shape[1], -(-len(members) // threads))
        whole = len(members) == len(self.state) and bool(np.all(np.diff(members) > 0))
        some: Any = slice(None) if whole else members
        weights, kind = laid_out(self.state[some], lanes, apart=True), self._backend.kind
        numbers = np.zeros((len(self._numbers), len(weights) * lanes), dtype=kind)
        numbers[:, : len(members)] = self._numbers[:, members]
        watched = self._recording is not None and self._backend.watches(self._recording)
        extremes = np.full((len(weights), 6 if watched else 0, lanes), np.inf, kind)
        extremes[:, 1::2] = -np.inf
        vectors = laid_out(self._vectors[some], lanes, apart=True)
        numbers = numbers.reshape(-1, len(weights), lanes)
        self._packed = Packed(members, weights, numbers, extremes, vectors)
        return self._packed

    def _note(self, packed: Packed) -> None:
        """Take over the numbers of packed runs; their weights stay where they are."""
        numbers = packed.numbers.reshape(len(packed.numbers), -1)
        self._numbers[:, packed.members] = numbers[:, : len(packed.members)]

    def _unpack(self, done: bool = False) -> None:
        """Take over the weights of packed runs, and start vectors unless it is done."""
        if (packed := self._packed) is None:
            return
        members = packed.members
        pairs = ((self.state, packed.weights), (self._vectors, packed.vectors))
        for mine, theirs in pairs[: 1 if done else 2]:
            lanes = theirs.shape[2]
            for lane in range(lanes):
                some = members[lane::lanes]
                mine[some] = theirs[: len(some), : mine.shape[1], lane]
        self._packed = None
