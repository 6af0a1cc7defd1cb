"""One person's runs: what one WebSocket asks for and is told.

A message is a JSON object with a `type`. The page asks for runs (in slot a, and b beside it), plays
and pauses them, and asks for what else there is to see; `MESSAGES` lists it all. A question that is
asked again replaces its unfinished answer. The session plays its runs: entries go out thirty times
a second as far as the playhead has come, and no faster than the page takes them.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from flatmin import Advice, advise
from flatmin.core.checks import check_choice
from flatmin.core.errors import FlatminError, SettingError
from flatmin.core.plain import plain
from flatmin.lab import maps, panels
from flatmin.lab.bifurcation import ORBIT_STEPS, orbits
from flatmin.lab.engine import Ground, facts, ground_of, together
from flatmin.lab.settings import setting_of
from flatmin.lab.shown import Pieces, Shown
from flatmin.lab.tables import Tables
from flatmin.lab.workers import Job, Stop, Stopped, Workers

Send = Callable[[str], Awaitable[None]]
T = TypeVar("T")

FRAME_SECONDS = 1 / 30
PATIENCE = 1.0
TESTED = 100  # networks for a rate
BUG = "Something went wrong inside flatmin; the terminal has the details."
SPEEDS = (1.0, 20_000.0)
SLOTS = ("a", "b")
SHOWS = ("all", "play", "hold")


class Session:
    """The state behind one socket."""

    def __init__(self, send: Send, workers: Workers, tables: Tables) -> None:
        self._send_text, self._workers, self._tables = send, workers, tables
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, Shown] = {}
        self._playing, self._speed, self._head = False, 100.0, 0.0
        self._wanted = False  # whether the run on its way is to be played
        self._moved = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        """One message to the page."""
        await self._send_text(json.dumps(message, separators=(",", ":"), allow_nan=False))

    async def receive(self, text: str) -> None:
        """One message from the page; what is wrong with it is answered."""
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            await self._complain("message", None, "a message must be a JSON object")
            return
        about, number = message.get("type"), message.get("id")
        number = number if isinstance(number, int) and abs(number) < 2**53 else None
        try:
            kind = check_choice("type", about if isinstance(about, str) else repr(about), MESSAGES)
            if kind in ACTS:
                ACTS[kind](self, message)
            else:
                slot = f"-{_slot(message)}" if kind in ("run", "layers") else ""
                if kind == "run":  # from now on: it may be paused before it has come
                    self._wanted = message.get("show") == "play"
                    self._playing = self._playing and self._wanted
                self._begin(kind + slot, number or 0, partial(JOBS[kind], self, message))
        except FlatminError as error:
            await self._complain(str(about)[:40], number, str(error))

    async def _complain(self, about: str, number: int | None, words: str) -> None:
        await self.send({"type": "error", "about": about, "id": number, "message": words[:600]})

    def _begin(self, name: str, number: int, work: Callable[[int], Awaitable[None]]) -> None:
        """Start a job in place of the one of the same name."""
        self.stop(name)

        async def guarded() -> None:
            try:
                await work(number)
            except FlatminError as error:
                await self._complain(name.partition("-")[0], number, str(error))
            except Stopped:
                return
            except Exception:
                traceback.print_exc()
                await self._complain(name.partition("-")[0], number, BUG)

        self._jobs[name] = asyncio.create_task(guarded())

    def stop(self, name: str) -> None:
        """End a job, if there is one."""
        job = self._jobs.pop(name, None)
        if job is not None:
            job.cancel()

    async def close(self) -> None:
        """End everything; the page has gone."""
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        self._runs.clear()

    # What the page asks for and waits for: jobs.

    async def run(self, message: dict[str, Any], number: int) -> None:
        """A run of these settings from entry `from` on: shown at once, played, or held there."""
        slot = _slot(message)
        show = check_choice("show", str(message.get("show", "all")), SHOWS)
        begin = _count("from", message.get("from", 0))

        def prepare(stop: Stop) -> tuple[Shown, Pieces]:
            ground = self._ground(message)
            shown, pieces = Shown(number, ground, plain(facts(ground))), Pieces(ground)
            shown.add(pieces(stop))
            return shown, pieces

        shown, job = await self._patiently("run", number, self._workers.quick(prepare))
        shown.sent = min(begin, len(shown))
        self._runs[slot] = shown
        await self.send(
            {
                "type": "run",
                "slot": slot,
                "id": number,
                "facts": shown.facts,
                "from": shown.sent,
                "extent": shown.extent(),
            }
        )
        if show == "play":
            self._head, self._playing = float(shown.sent), self._wanted
            self._play()
        elif show == "all":
            await self._show(slot, shown, len(shown))
        while shown.end is None:
            shown.add(await self._workers.quick(job))
            if show == "all":
                await self._show(slot, shown, len(shown))
            self._moved.set()

    def _ground(self, message: dict[str, Any]) -> Ground:
        """What the run of a message's settings stands on; for workers, it may take a while."""
        return ground_of(setting_of(message.get("settings")), self._tables)

    async def _patiently(
        self, about: str, number: int, work: Coroutine[Any, Any, T], stops: Sequence[Stop] = ()
    ) -> T:
        """The result of a job; if it takes long, the page is told how far it is."""
        job = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([job], timeout=PATIENCE))[0]:
                known = bool(stops and stops[0].of)
                share = min(1.0, stops[0].done / stops[0].of) if known else None
                await self._progress(about, number, share)
            return job.result()
        except asyncio.CancelledError:
            job.cancel()
            raise

    async def _progress(self, about: str, number: int, share: float | None) -> None:
        await self.send({"type": "progress", "about": about, "id": number, "share": share})

    async def _slowly(self, about: str, number: int, job: Job[T], of: float = 0) -> T:
        """The result of a job that may take long, and tells its progress `of` a number."""
        stops: list[Stop] = []

        def counted(stop: Stop) -> T:
            stop.of = int(of)
            stops.append(stop)
            return job(stop)

        return await self._patiently(about, number, self._workers.long(counted), stops)

    async def _show(self, slot: str, shown: Shown, until: int) -> None:
        if self._runs.get(slot) is shown:
            await self.send(shown.frame(slot, until))

    def drop(self, message: dict[str, Any]) -> None:
        """Forget the run of a slot."""
        slot = _slot(message)
        self.stop(f"run-{slot}")
        self._runs.pop(slot, None)

    def play(self, message: dict[str, Any]) -> None:
        """Go on, from entry `from` if it is given."""
        if "from" in message:
            self._head = float(self._back(message))
        self._playing = True
        self._play()

    def pause(self, message: dict[str, Any]) -> None:
        """Stay where the playhead is."""
        self._playing = self._wanted = False

    def step(self, message: dict[str, Any]) -> None:
        """One entry, or some, from entry `from`."""
        self._playing = False
        by = _count("by", message.get("by", 1))
        self._head = float(self._back(message) + by)
        self._play()

    def _back(self, message: dict[str, Any]) -> int:
        """What is shown is sent again from entry `from` on."""
        begin = _count("from", message.get("from", 0))
        for shown in self._runs.values():
            shown.sent = min(begin, len(shown))
        return begin

    def speed(self, message: dict[str, Any]) -> None:
        """Entries a second."""
        value = message.get("value")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise SettingError(f"speed must be a positive number, got {value!r}"[:200])
        self._speed = float(min(max(value, SPEEDS[0]), SPEEDS[1]))

    def _play(self) -> None:
        self._moved.set()
        job = self._jobs.get("play")
        if job is None or job.done():
            self._jobs["play"] = asyncio.create_task(self._playback())

    async def _playback(self) -> None:
        """Send entries as the playhead passes them, until it stands at the end or is stopped."""
        last = time.monotonic()
        while True:
            self._moved.clear()
            now = time.monotonic()
            if self._playing:
                self._head += self._speed * min(now - last, 0.25)
            last = now
            longest = max((len(shown) for shown in self._runs.values()), default=0)
            self._head = min(self._head, float(longest))
            for slot, shown in list(self._runs.items()):
                until = min(int(self._head), len(shown))
                if until > shown.sent:
                    await self.send(shown.frame(slot, until))
            made = all(shown.end is not None for shown in self._runs.values())
            if not self._playing:
                return
            if self._head >= longest and made:
                self._playing = False
                return
            if self._head >= longest:
                await self._moved.wait()  # for the next piece
                last = time.monotonic()
            await asyncio.sleep(max(0.0, FRAME_SECONDS - (time.monotonic() - now)))

    async def layers(self, message: dict[str, Any], number: int) -> None:
        """Singular values, alignments and eigenvalues along the run of a slot."""
        slot = _slot(message)
        shown = self._runs.get(slot)
        if shown is None:
            return
        ground = shown.ground

        def measure(stop: Stop) -> dict[str, Any]:
            taken = panels.snapshots(ground, shown.steps, shown.times(panels.points(ground)), stop)
            return panels.layers(ground, taken, stop)

        of = 0 if "time" in shown.columns else shown.steps + ground.setting.steps
        found = await self._slowly("layers", number, measure, of)
        await self.send({"type": "layers", "slot": slot, "id": shown.id, **found})

    async def ledger(self, message: dict[str, Any], number: int) -> None:
        """Every statement on the run of a slot up to step `until`."""
        until = max(1, _count("until", message.get("until", 1)))
        shown = self._runs.get(_slot(message))
        if shown is None:
            return
        ground, until = shown.ground, min(until, shown.ground.setting.steps)
        judge = partial(panels.ledger, ground, until)
        rows = await self._slowly("ledger", number, judge, until * ground.setting.networks)
        await self.send({"type": "ledger", "id": shown.id, "until": until, "rows": rows})

    async def advice(self, message: dict[str, Any], number: int) -> None:
        """A rate that was tested, for the network and start of these settings."""

        def ask(stop: Stop) -> Advice | None:
            ground = self._ground(message)
            setting, init = ground.setting, ground.setting.initialisation
            large = together(ground.network) < TESTED
            if setting.method.name != "descent" or init.scale is None or large:
                return None
            return advise(
                ground.samples,
                ground.network,
                init.name,
                init.scale,
                learned_at=setting.method.learned_at,
                seed=setting.seed,
                progress=stop,
            )

        found = await self._slowly("advice", number, ask)
        rate = None if found is None else found.learning_rate
        why = "" if found is None else found.reason
        await self.send({"type": "advice", "id": number, "rate": plain(rate), "reason": why})

    async def map(self, message: dict[str, Any], number: int) -> None:
        """How runs end over the rate and one other setting."""
        axis, settings = str(message.get("axis", "scale")), message.get("settings")
        made = await self._workers.slow(
            lambda stop: maps.plan(setting_of(settings), axis, self._tables)
        )
        await self.send({"type": "map", "id": number, **made.as_dict()})
        picture, begun, ran = maps.Picture(made), time.monotonic(), 0
        for place, stride in enumerate(made.strides):
            todo = list(maps.batches(made, place))

            async def work(batch: maps.Batch) -> None:
                ended = partial(maps.run, batch, made.steps)
                picture.add(batch, await self._workers.slow(ended))

            # No more of one person's batches wait at a time than there are cores.
            while todo:
                some, todo = todo[: self._workers.cores], todo[self._workers.cores :]
                await asyncio.gather(*map(work, some))
                ran += sum(len(batch.rates) for batch in some)
                if time.monotonic() - begun > PATIENCE:
                    share = ran / (len(made.rates) * len(made.rows))
                    await self._progress("map", number, share)
            last = stride == made.strides[-1]
            await self.send({"type": "map-pass", "id": number, "last": last, **picture.at(stride)})

    async def orbits(self, message: dict[str, Any], number: int) -> None:
        """Where descent goes above the ceiling."""

        def look(stop: Stop) -> dict[str, Any]:
            return orbits(self._ground(message), stop)

        found = plain(await self._slowly("orbits", number, look, ORBIT_STEPS))
        await self.send({"type": "orbits", "id": number, **found})

    def cancel(self, message: dict[str, Any]) -> None:
        """End a job that takes long."""
        self.stop(check_choice("what", str(message.get("what")), CANCELLED))


CANCELLED = ("map", "advice", "ledger", "orbits", "run-a", "run-b", "layers-a", "layers-b")

_JOBS = (Session.run, Session.layers, Session.ledger, Session.advice, Session.map, Session.orbits)
_ACTS = (Session.drop, Session.play, Session.pause, Session.step, Session.speed, Session.cancel)
JOBS = {one.__name__: one for one in _JOBS}
ACTS = {one.__name__: one for one in _ACTS}
MESSAGES = (*JOBS, *ACTS)
"""What a message may ask for."""


def _slot(message: dict[str, Any]) -> str:
    return check_choice("slot", str(message.get("slot", "a")), SLOTS)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise SettingError(f"{name} must be a whole number of at least 0, got {value!r}"[:200])
    return value
