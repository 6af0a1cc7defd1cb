"""A short run of damaged folders, those that once broke something, and whether the judge sees."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adversary import folders
from adversary.damage import INDEX
from adversary.folders import Attack
from adversary.watchdog import Watchdog
from commands import call
from flatmin.study import digest
from flatmin.study.shard_files import encode

# Each gave a traceback, a hang, a wrong answer or a change outside the folder.
FOUND = [
    Attack((("forged more rows", 10701), ("a type", 185706967)), "check", False),
    Attack((("a file for a folder", 71826), ("forged a type", 71826)), "export csv", False),
    Attack((("a type", 955972955), ("a type", 955972955)), "show as text", False),
    Attack((("no shard", 1),), "check", False),
    Attack((("a folder outside", 2),), "run", False),
    Attack((("a folder outside", 1),), "run", False),
    Attack((("leftovers", 1), ("a bit", 1)), "run", True),
    Attack((("failures", 1),), "show as text", False),
    Attack((("failures", 1),), "run", False),
    Attack((("foreign", 114), ("forged a value", 51339092)), "check", True, True),
    Attack((("forged no column", 932564138), ("a bit of any file", 693)), "check", True, True),
    Attack((("record", 94), ("a file for a folder", 1607)), "check train", False, True),
    Attack((("arrays", 146),), "check train", False),
    Attack((("arrays", 1559960),), "check train", False),
    Attack((("a folder outside", 50292), ("arrays", 220), ("record", 72)), "check train", False),
]


@pytest.fixture(scope="module")
def watchdog():
    made = Watchdog()
    folders.truth()
    return made


@pytest.mark.parametrize("attack", FOUND, ids=str)
def test_what_was_found_once_stays_mended(watchdog, attack):
    assert watchdog.run(folders.case(attack))[1] is None


def test_the_index_of_a_case_is_that_of_a_folder_made_here(watchdog):
    """It is believed about files that were not touched since; of a copied folder it is not."""
    for made_here in (True, False):
        case = folders.case(Attack((), "run", read_only=False, indexed=made_here))

        def prepare(folder, before=case.prepare):
            before(folder)
            path = folder / "study" / INDEX
            path.write_text(path.read_text().replace('"learning"', '"stalled"'))

        said = watchdog.run(replace(case, prepare=prepare))[0].out
        assert (b"stalled" in said) == made_here


def test_whatever_a_forged_shard_holds_is_used_or_one_line(tmp_path, monkeypatch, capsys):
    """Every column of it, with a digest that fits: one value or all are odd."""
    monkeypatch.chdir(tmp_path)
    for name, content in folders.truth().files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    draw = random.Random(5)
    for kind in ("runs", "traces"):
        path = min(Path("study", kind).glob("shard-*.parquet"))
        before, table = path.read_bytes(), pq.read_table(path)
        for at, (name, field) in enumerate(zip(table.column_names, table.schema, strict=True)):
            for odd in [None, *draw.sample(_odd(field.type), 1)]:
                values = [odd, *table[name].to_pylist()[1:]]
                values = draw.choice([values, [odd] * len(values)])
                made = table.set_column(at, name, pa.array(values, field.type))
                path.write_bytes(encode(made, digest.marks(made)))
                for command in ("check", "export csv"):
                    code, out, err = call(monkeypatch, capsys, *folders.COMMANDS[command])
                    assert code in (0, 1, 2), (name, odd)
                    assert (err.count("\n"), out) == (1, "") if code == 2 else "Warn" not in err
        path.write_bytes(before)


def _odd(kind):
    """What a column of this type may hold and none of flatmin's does."""
    if pa.types.is_float64(kind):
        return [-1.0, math.nan, math.inf, -math.inf, 1e300, 1e-320, 0.0]
    if pa.types.is_integer(kind):
        return [-1, 0, 10**6, 2**62]
    if pa.types.is_string(kind):
        return ["", "[/red]", "x" * 1000, "settled\n"]
    return [True, False] if pa.types.is_boolean(kind) else [[], [math.nan], [1.0] * 50, [None]]


def test_damaged_folders_are_refused_or_healed():
    score = folders.run(30, seed=1)
    assert score.failures == []
    assert score.count["cases"] == 30
    assert score.count["exit 0"] >= 5
    assert score.count["exit 2"] >= 5
