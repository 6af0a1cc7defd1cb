"""Disks that are full, have no more names, may only be read, or limit the size of a file.

One line and exit code 2, nothing half written; what is there is whole; and when there is room
again, the same command gives the files of an undisturbed run. Disks are real ones, in memory, which
root may mount and others in a namespace of their own; where neither is allowed, the limit of the
size of a file stands for all of them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import hypothesis.strategies as st

from adversary.folders import STUDY, TRAIN, truth
from adversary.grammar import numbered
from adversary.options import ADDRESS, EXAMPLE, TABLE
from adversary.watchdog import Answer, Case, Score, Watchdog, rule

PREDICT = ("predict", TABLE, "--target", "y", "--depth", "3", "--no-measure", "--json")
COMMANDS: dict[str, tuple[str, ...]] = {
    "study run": STUDY,
    "study run, continued": STUDY,
    "train": TRAIN,
    "predict with a figure": (*PREDICT, "--figure", "f.png"),
    "predict with a certificate": (*PREDICT, "--certificate", "c.json"),
    "study export": ("study", "export", "study", "table.parquet"),
    "study export as text": ("study", "export", "study", "table.csv"),
    "study export of traces": ("study", "export", "study", "table.parquet", "--traces"),
    "study plot": ("study", "plot", "study", "--out", "f.png"),
    "study new": ("study", "new", "new.toml"),
    "lab": ("lab", "--replay", ADDRESS, "--out", "records.csv"),
}
NEW = {"study run", "train"}
BALLAST, NAMES = "ballast", 200
_NEWNS, _NEWUSER, _PRIVATE, _READ_ONLY, _AGAIN, _DETACH = 1 << 17, 1 << 28, 0x44000, 1, 32, 2


class Attack(NamedTuple):
    """What the disk lacks: `share` of what the command writes is there."""

    kind: str
    share: float
    command: str


def attacks() -> st.SearchStrategy[Attack]:
    kinds = st.sampled_from(["full", "full", "full", "names", "read-only", "file size"])
    shares = st.sampled_from([0.0, 0.02, *(i / 20 for i in range(1, 23))])
    return st.builds(Attack, kinds, shares, st.sampled_from(list(COMMANDS)))


def files(command: str) -> dict[str, bytes]:
    """What is there before."""
    there = {TABLE: EXAMPLE.read_bytes()} | dict(truth().files)
    if command in NEW:
        there = {name: there[name] for name in (TABLE, "spec.toml")}
    if command == "study run, continued":
        shards = sorted(name for name in there if "/shard-" in name)
        there = {name: there[name] for name in there if name not in shards[::2]}
    return there


@cache
def undisturbed(command: str) -> dict[str, bytes]:
    """The files after the command, with all the room it wants."""
    found: dict[str, bytes] = {}

    def keep(answer: Answer, folder: Path) -> None:
        assert answer.code == 0, answer
        found.update(seen(folder))

    Watchdog().run(Case(COMMANDS[command], files(command), always=keep))
    return found


def seen(folder: Path) -> dict[str, bytes]:
    """Every file that is not hidden."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".") and path.name != BALLAST
    }


def _system(what: str, *args: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, what)(*args):
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


@cache
def mounts() -> bool:
    """Whether this process may mount disks; afterwards they are its own."""
    user, group = os.getuid(), os.getgid()
    try:
        if user:
            _system("unshare", _NEWUSER | _NEWNS)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        else:
            _system("unshare", _NEWNS)
        _system("mount", b"none", b"/", None, _PRIVATE, None)
    except OSError:
        return False
    return True


def run_one(attack: Attack, watchdog: Watchdog) -> tuple[Answer, str | None]:
    """The answer on such a disk, and what is wrong with it or with the next one."""
    whole, before = undisturbed(attack.command), files(attack.command)
    needed = sum(len(content) for name, content in whole.items() if name not in before)
    free = int(attack.share * needed)
    case = Case(COMMANDS[attack.command], before)
    with tempfile.TemporaryDirectory(prefix="adversary-") as place:
        folder, inside = Path(place), Path(place) / "inside"
        inside.mkdir()
        mounted = attack.kind != "file size"
        if mounted:
            _system("mount", b"tmpfs", bytes(inside), b"tmpfs", 0, b"size=64m")
        try:
            for name, content in before.items():
                (inside / name).parent.mkdir(parents=True, exist_ok=True)
                (inside / name).write_bytes(content)
            _lack(attack.kind, inside, free, attack.share)
            first = case
            if not mounted:
                # Its streams are files too, and a complaint needs a line of room.
                first = replace(case, child=lambda: _limit(max(free, 512)))
            answer = watchdog._forked(first, folder, inside)
            names = [str(path.relative_to(inside)) for path in inside.rglob("*")]
            answer = replace(answer, left=tuple(name for name in names if name not in before))
            wrong = rule(case, answer, inside) or _half(seen(inside), before, whole)
            if mounted:
                _system("mount", b"tmpfs", bytes(inside), b"tmpfs", _AGAIN, b"size=64m,nr_inodes=0")
            (inside / BALLAST).unlink(missing_ok=True)
            return answer, wrong or _again(case, watchdog, folder, inside, whole)
        finally:
            if mounted:
                _system("umount2", bytes(inside), _DETACH)


def _lack(kind: str, inside: Path, free: int, share: float) -> None:
    """The disk as the command finds it."""
    if kind == "full":
        disk = os.statvfs(inside)
        page = disk.f_frsize
        with open(inside / BALLAST, "wb") as ballast:
            ballast.write(bytes(max(0, disk.f_bavail * page - -(-free // page) * page)))
    elif kind == "names":
        there = sum(1 for _ in inside.rglob("*")) + 1
        most = there + int(30 * share)
        _system("mount", b"tmpfs", bytes(inside), b"tmpfs", _AGAIN, b"size=64m,nr_inodes=%d" % most)
    elif kind == "read-only":
        _system("mount", b"tmpfs", bytes(inside), b"tmpfs", _AGAIN | _READ_ONLY, b"size=64m")


def _limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _half(found: dict[str, bytes], before: dict[str, bytes], whole: dict[str, bytes]) -> str | None:
    for name, content in found.items():
        if content not in (before.get(name), whole.get(name)):
            return f"{name} is half written"
    lost = [name for name in before if name not in found and not Path(name).name.startswith(".")]
    return f"{lost[0]} is lost" if lost else None


def _again(
    case: Case, watchdog: Watchdog, folder: Path, inside: Path, whole: dict[str, bytes]
) -> str | None:
    """What is wrong with the same command when there is room again."""
    if case.args[:2] == ("study", "new"):  # which refuses to write over its own file
        (inside / case.args[2]).unlink(missing_ok=True)
    answer = watchdog._forked(case, folder, inside)
    if answer.code:
        return f"with room again: exit code {answer.code}: {answer.lines()[-1:]}"
    found = seen(inside)
    different = [name for name in sorted(found.keys() | whole.keys())
                 if found.get(name) != whole.get(name)]  # fmt: skip
    return f"with room again: {different[0]} is another file" if different else None


def run(cases: int, seed: int = 0, first: int = 0) -> Score:
    """So many disks, and what came of them."""
    real, score = mounts(), Score()
    truth()
    for command in COMMANDS:
        undisturbed(command)
    watchdog = Watchdog((("lab", "--replay", ADDRESS),))
    for number, attack in numbered(attacks(), cases, seed, first):
        if not real:
            attack = attack._replace(kind="file size")
        answer, wrong = run_one(attack, watchdog)
        score.count[attack.kind] += 1
        score.judged(f"{number} {attack}", Case(COMMANDS[attack.command]), answer, wrong)
    return score
