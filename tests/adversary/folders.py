"""Damaged and hostile folders of results under every command that reads or continues one.

a shard that fails is never used, and runs that are missing are said with their number;
`study run` heals: the tables are those of the undamaged study, or it says why not in one line;
nothing outside the folder changes.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import resource
import signal
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adversary.damage import DAMAGE, FORGED, OUTSIDE, UNSEEN, fresh_index
from adversary.grammar import numbered
from adversary.watchdog import Answer, Case, Score, Watchdog, _silently, address_space

SPEC = """\
seed = 3
datasets = 2
repetitions = 3
problem = { generator = "gaussian", n = 20, d = 3 }
architecture = {}
method = { steps = 60, learning_rate = 0.05 }
record = { every = 30, quantities = ["excess_risk", "sharpness"] }

[grid]
depth = [2, 3]
scale = [0.3, 0.6]
"""
TRAIN = ("train", "--depth", "2", "--steps", "40", "--learning-rate", "0.05", "--out", "train")
STUDY = ("study", "run", "spec.toml", "--out", "study")
COMMANDS: dict[str, tuple[str, ...]] = {
    "show": ("study", "show", "study", "--json"),
    "show as text": ("study", "show", "study"),
    "export": ("study", "export", "study", "table.parquet"),
    "export csv": ("study", "export", "study", "table.csv"),
    "export traces": ("study", "export", "study", "table.parquet", "--traces"),
    "plot": ("study", "plot", "study", "--out", "figure.svg"),
    "verify": ("study", "verify", "study", "--json"),
    "check": ("check", "study"),
    "run": STUDY,
    "run again": (*STUDY, "--json"),
    "check train": ("check", "train"),
    "train again": TRAIN,
}
RARE = ("plot", "train again")  # they take longest
VERDICTS = {"verify", "check", "check train"}


class Truth(NamedTuple):
    """The folders undamaged: their files and their tables."""

    files: dict[str, bytes]
    rows: pa.Table
    traces: pa.Table


@cache
def truth() -> Truth:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            Path("spec.toml").write_text(SPEC)
            assert _silently(STUDY) == 0
            assert _silently(TRAIN) == 0
            for command in COMMANDS.values():
                assert _silently(command) in (0, 1)
            found = _files(Path(place))
            table = [_read(found, kind) for kind in ("runs", "traces")]
        finally:
            os.chdir(before)
    made = {"table.parquet", "table.csv", "figure.svg"}
    return Truth({name: content for name, content in found.items() if name not in made}, *table)


def _files(folder: Path) -> dict[str, bytes]:
    """Every plain file by its name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != ".lock"
        if path.stat().st_size < 1 << 30
    }


def _read(files: dict[str, bytes], kind: str) -> pa.Table:
    """All shards of a study, by plain pyarrow."""
    parts = [
        pq.read_table(io.BytesIO(content))
        for name, content in files.items()
        if name.startswith(f"study/{kind}/shard-")
    ]
    return pa.concat_tables(parts).sort_by("run")


class Attack(NamedTuple):
    """Which damage, in which order, with which random numbers, under which command.

    `indexed`: the folder was made here, so that its index knows the files before the damage.
    """

    damages: tuple[tuple[str, int], ...]
    command: str
    read_only: bool
    indexed: bool = False


def attacks() -> st.SearchStrategy[Attack]:
    names = st.sampled_from([*DAMAGE, *FORGED])
    damage = st.tuples(names, st.integers(0, 2**32))
    return st.builds(
        Attack,
        st.lists(damage, min_size=0, max_size=3).map(tuple),
        st.sampled_from([name for name in COMMANDS for _ in range(1 if name in RARE else 4)]),
        st.sampled_from([False] * 7 + [True]),
        st.booleans(),
    )


def case(attack: Attack) -> Case:
    target = "train" if "train" in attack.command else "study"
    outer: dict[str, tuple[int, bytes] | None] = {}

    def prepare(folder: Path) -> None:
        outside = folder / OUTSIDE
        outside.mkdir()
        (outside / "file").write_text("mine")
        (outside / ".mine.1.part.txt").write_text("mine")
        (outside / "shard-0.parquet").write_text("mine")
        os.mkfifo(outside / "fifo")
        os.chmod(folder.parent, 0o755)
        if attack.indexed:
            fresh_index(folder / "study")
        for number, (name, seed) in enumerate(attack.damages):
            with _tolerant(after=number > 0):
                (DAMAGE | FORGED)[name](folder / target, random.Random(seed))
        outer.update(_contents(outside))

    def always(answer: Answer, folder: Path) -> str | None:
        return None if _contents(folder / OUTSIDE) == outer else "a folder reached outside itself"

    unseen = any(name in UNSEEN for name, _ in attack.damages)
    return Case(
        args=COMMANDS[attack.command],
        files=truth().files,
        codes=(0, 1, 2) if attack.command in VERDICTS else (0, 2),
        prepare=prepare,
        right=None if unseen else RIGHT.get(attack.command),
        always=always,
        child=_as_nobody if attack.read_only else None,
    )


class _tolerant:
    """Damage on damage may find anything: nothing left, a pipe that nobody writes to, terabytes."""

    def __init__(self, after: bool) -> None:
        self._after = after

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (address_space() + (1 << 31), self._before[1]))
        signal.signal(signal.SIGALRM, _waited)
        signal.alarm(10)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, self._before)
        lost = (OSError, pa.ArrowException, ValueError, KeyError, MemoryError)
        return isinstance(error, Exception if self._after else lost)


def _waited(*_: object) -> None:
    raise TimeoutError


def _as_nobody() -> None:
    """All files belong to someone else and may only be read."""
    os.setgid(65534)
    os.setuid(65534)


def _contents(folder: Path) -> dict[str, tuple[int, bytes] | None]:
    """Everything in a folder by size and beginning (damage may reach it); None: pipes, links."""
    found: dict[str, tuple[int, bytes] | None] = {}
    for path in sorted(folder.rglob("*")):
        content = None
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                content = path.stat().st_size, file.read(1 << 16)
        found[str(path.relative_to(folder))] = content
    return found


def _missing(text: str) -> int:
    said = re.search(r"([\d,]+) runs of the study are missing", " ".join(text.split()))
    return int(said[1].replace(",", "")) if said else 0


def _show(answer: Answer, folder: Path) -> str | None:
    found = json.loads(answer.out)
    if found["counts"]["runs"] + (found["missing"] or 0) != len(truth().rows):
        return "missing runs not said"
    return None


def _show_text(answer: Answer, folder: Path) -> str | None:
    text = answer.out.decode()
    shown = re.search(r"^ *runs +(\d+)", text, re.MULTILINE)
    if shown is None or int(shown[1]) + _missing(text) != len(truth().rows):
        return "missing runs not said"
    return None


def _export(answer: Answer, folder: Path) -> str | None:
    table = pq.read_table(folder / "table.parquet")
    lost = _missing(answer.out.decode())
    if len(table) + lost != len(truth().rows):
        return "missing runs not said"
    return _part_of(table, truth().rows)


def _part_of(table: pa.Table, whole: pa.Table) -> str | None:
    """Whether all rows of the table are rows of the whole one, bit by bit."""
    runs = set(table["run"].to_pylist())
    kept = whole.filter(pa.array([run in runs for run in whole["run"].to_pylist()]))
    same = [name for name in kept.column_names if name in table.column_names]
    if same != kept.column_names or len(kept) != len(table):
        return "exported rows are not those that were written"
    for name in same:
        one, other = kept[name], table[name]
        if one.to_pylist() != other.to_pylist() and not _equal(one, other):
            return f"exported {name} is not what was written"
    return None


def _equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True))


def _export_traces(answer: Answer, folder: Path) -> str | None:
    table = pq.read_table(folder / "table.parquet")
    runs = len(set(table["run"].to_pylist()))
    if runs + _missing(answer.out.decode()) != len(truth().rows):
        return "missing runs not said"
    return _part_of(table, truth().traces)


def _export_csv(answer: Answer, folder: Path) -> str | None:
    lines = (folder / "table.csv").read_text().splitlines()
    if len(lines) - 1 + _missing(answer.out.decode()) != len(truth().rows):
        return "missing runs not said"
    return None


def _whole(folder: Path) -> bool:
    files = {name: content for name, content in _files(folder).items() if "/shard-" in name}
    for name, content in truth().files.items():
        if "/shard-" in name:
            try:
                found = pq.read_table(io.BytesIO(files[name]))
            except (KeyError, pa.ArrowException, OSError):
                return False
            if not found.equals(pq.read_table(io.BytesIO(content))):
                return False
    return True


def _verify(answer: Answer, folder: Path) -> str | None:
    if answer.code == 0 and not _whole(folder):
        return "a damaged study is called whole"
    return None


def _check(answer: Answer, folder: Path) -> str | None:
    if not _whole(folder) and not _missing(answer.out.decode()):
        return "missing runs not said"
    return None


def _run(answer: Answer, folder: Path) -> str | None:
    if not _whole(folder):
        return "a study that was run is not whole"
    found = _files(folder)
    strange = [name for name in found if name.startswith("study/") and ".part" in name]
    return "leftovers stay" if strange else None


RIGHT = {
    "show": _show, "show as text": _show_text, "export": _export, "export csv": _export_csv,
    "export traces": _export_traces, "verify": _verify, "check": _check, "run": _run,
    "run again": _run,
}  # fmt: skip


def run(cases: int, seed: int = 0, first: int = 0) -> Score:
    """So many attacks, and what came of them."""
    watchdog = Watchdog()
    truth()
    score = Score()
    for number, attack in numbered(attacks(), cases, seed, first):
        made = case(attack)
        answer, wrong = watchdog.run(made)
        score.judged(f"{number} {attack}", Case(made.args), answer, wrong)
    return score
