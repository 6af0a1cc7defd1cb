"""Ways in which a folder of results is damaged, edited or forged; each is a row of `DAMAGE`.

A function takes the folder and a random number generator and changes the folder. Some damage no
digest can see, since it comes with digests of its own (`FORGED`): there the rule is only that
nothing breaks. Beside the folder lies `outside`, which nothing in the folder may change.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flatmin.study import digest
from flatmin.study.index import NAME as INDEX
from flatmin.study.index import listing
from flatmin.study.shard_files import encode, file_name

OUTSIDE = "outside"


def some(paths: list[Path], rng: random.Random) -> Path | None:
    return rng.choice(paths) if paths else None


def anything(folder: Path) -> list[Path]:
    """Files that can be read here: not those that another damage has made huge."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in paths if path.stat().st_size < 1 << 26)


def shards(folder: Path) -> list[Path]:
    return [path for path in anything(folder) if path.match("shard-*.parquet")]


def edit(path: Path, table: pa.Table, keep: dict[bytes, bytes] | None = None) -> None:
    """As a person with pyarrow leaves it: other content, the same metadata."""
    pq.write_table(table.replace_schema_metadata(keep), path)


def rewritten(change: Any) -> Any:
    """Damage to the table of some shard."""

    def damage(folder: Path, rng: random.Random) -> None:
        if path := some(shards(folder), rng):
            try:
                table = pq.read_table(path)
            except (pa.ArrowException, OSError):
                return
            if len(table):
                edit(path, change(table, rng), table.schema.metadata)

    return damage


def forged(change: Any) -> Any:
    """The same, with digests that fit."""

    def damage(folder: Path, rng: random.Random) -> None:
        if path := some(shards(folder), rng):
            try:
                table = pq.read_table(path)
            except (pa.ArrowException, OSError):
                return
            if len(table):
                made = change(table, rng)
                kept = {
                    key.decode(errors="replace"): value.decode(errors="replace")
                    for key, value in (table.schema.metadata or {}).items()
                }
                path.write_bytes(encode(made, kept | digest.marks(made)))

    return damage


def fewer(table: pa.Table, rng: random.Random) -> pa.Table:
    drop = set(rng.sample(range(len(table)), rng.randint(1, len(table))))
    return table.take([i for i in range(len(table)) if i not in drop])


def more(table: pa.Table, rng: random.Random) -> pa.Table:
    start = rng.randrange(len(table))
    return pa.concat_tables([table, table.slice(start, rng.randint(1, 5))])


def mixed(table: pa.Table, rng: random.Random) -> pa.Table:
    order = list(range(len(table)))
    while len(order) > 1 and order == sorted(order):
        rng.shuffle(order)
    return table.take(order)


def other_value(table: pa.Table, rng: random.Random) -> pa.Table:
    name = rng.choice(table.column_names)
    values = table[name].to_pylist()
    place = rng.randrange(len(values))
    kind = table.schema.field(name).type
    old = values[place]
    choices: list[Any] = [None]
    if pa.types.is_float64(kind):
        near = np.nextafter(old, np.inf) if old is not None else 1.0
        choices += [near, -1.0, float("nan"), float("inf"), 1e300, -0.0]
    elif pa.types.is_int64(kind):
        choices += [-1, 0, 2**62, (old or 0) + 1]
    elif pa.types.is_string(kind):
        choices += ["", "[/red]", "x" * 10_000, "\x1b[31m", "settled\n"]
    elif pa.types.is_boolean(kind):
        choices += [not old]
    else:
        choices += [[], [float("nan")], [1.0] * 50]
    values[place] = rng.choice(choices)
    column = pa.array(values, kind)
    if column.equals(table[name].combine_chunks()):
        return fewer(table, rng)
    return table.set_column(table.column_names.index(name), name, column)


def no_column(table: pa.Table, rng: random.Random) -> pa.Table:
    return table.drop_columns(rng.choice(table.column_names))


def new_name(table: pa.Table, rng: random.Random) -> pa.Table:
    old = rng.choice(table.column_names)
    new = rng.choice(["x", "", "run", "[/red]", old.upper(), "é\n"])
    return table.rename_columns([new if name == old else name for name in table.column_names])


def new_type(table: pa.Table, rng: random.Random) -> pa.Table:
    name = rng.choice(table.column_names)
    kind = rng.choice([pa.string(), pa.float32(), pa.int8(), pa.binary(), pa.timestamp("s")])
    kind = rng.choice([kind, pa.list_(pa.string()), pa.struct([("a", pa.int8())]), pa.null()])
    column = pa.nulls(len(table), kind)
    if pa.types.is_string(kind):
        column = pa.array(["word"] * len(table))
    return table.set_column(table.column_names.index(name), name, column)


def more_columns(table: pa.Table, rng: random.Random) -> pa.Table:
    return table.append_column(rng.choice(["x", "[/red]", "edge_share "]), pa.nulls(len(table)))


def metadata(folder: Path, rng: random.Random) -> None:
    """One mark of a shard, changed or huge."""
    if path := some(shards(folder), rng):
        table = pq.read_table(path)
        marks = dict(table.schema.metadata or {})
        if not marks:
            return
        key = rng.choice(sorted(marks))
        odd = [b"", b"\xff\xfe", b"99", b"no", b"{}", b"[1]", b"x" * 10_000_000]
        value: bytes = rng.choice(odd)
        if rng.random() < 0.2:
            marks.pop(key)
        else:
            marks[key] = value
        pq.write_table(table.replace_schema_metadata(marks), path)


def flip(folder: Path, rng: random.Random) -> None:
    if path := some(anything(folder), rng):
        content = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 1, 3, 50])):
            if content:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def flip_shard(folder: Path, rng: random.Random) -> None:
    if path := some(shards(folder), rng):
        content = bytearray(path.read_bytes())
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content)


def truncate(folder: Path, rng: random.Random) -> None:
    if path := some(anything(folder), rng):
        content = path.read_bytes()
        path.write_bytes(content[: rng.choice([0, 1, 4, 100, len(content) // 2, len(content) - 1])])


def splice(folder: Path, rng: random.Random) -> None:
    """A piece of a file repeated, lost or overwritten by noise."""
    if path := some(anything(folder), rng):
        content = path.read_bytes()
        at, end = sorted(rng.choices(range(len(content) + 1), k=2))
        piece = rng.choice([b"", content[at:end] * 2, rng.randbytes(min(end - at, 1000))])
        path.write_bytes(content[:at] + piece + content[end:])


def swap(folder: Path, rng: random.Random) -> None:
    """One file in the place of another."""
    paths = anything(folder)
    if len(paths) > 1:
        one, other = rng.sample(paths, 2)
        other.write_bytes(one.read_bytes())


def traces_as_runs(folder: Path, rng: random.Random) -> None:
    if path := some(shards(folder / "traces"), rng):
        shutil.copyfile(path, folder / "runs" / path.name)


def remove(folder: Path, rng: random.Random) -> None:
    if path := some(anything(folder), rng):
        path.unlink()


def remove_shard(folder: Path, rng: random.Random) -> None:
    if path := some(shards(folder), rng):
        path.unlink()


def remove_folder(folder: Path, rng: random.Random) -> None:
    inner = sorted(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())
    if path := some(inner, rng):
        shutil.rmtree(path)


def file_for_folder(folder: Path, rng: random.Random) -> None:
    inner = sorted(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())
    if path := some(inner, rng):
        shutil.rmtree(path)
        path.write_bytes(b"not a folder")


def replaced(make: Any) -> Any:
    """Something else in the place of a file, or beside the files."""

    def damage(folder: Path, rng: random.Random) -> None:
        path = some(anything(folder), rng)
        if path is None:
            return
        if rng.random() < 0.2:
            path = path.with_name(rng.choice(["shard-0.parquet", "failures", ".lock", "x.json"]))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        make(path, folder, rng)

    return damage


def link_out(path: Path, folder: Path, rng: random.Random) -> None:
    target = folder.parent / OUTSIDE / rng.choice(["file", "shard.parquet", "missing", "."])
    path.symlink_to(target)


def link_loop(path: Path, folder: Path, rng: random.Random) -> None:
    path.symlink_to(rng.choice([path.name, ".", folder]))


def link_odd(path: Path, folder: Path, rng: random.Random) -> None:
    odd = ["/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "/nowhere"]
    path.symlink_to(rng.choice(odd))


def folder_link(folder: Path, rng: random.Random) -> None:
    """A folder of the study is a link to one outside, with files that look like its own."""
    inner = sorted(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())
    if path := some(inner, rng):
        shutil.rmtree(path)
        path.symlink_to(folder.parent / OUTSIDE, target_is_directory=True)


def foreign(folder: Path, rng: random.Random) -> None:
    places = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    name = rng.choice(
        ["mine.txt", "shard-.parquet", "shard-[red].parquet", ".x.1.part.parquet", "a" * 200,
         "\x1b[31m", "shard-a/b.parquet", "[/red]", "ü.parquet", "shard-00.parquet"]
    ).replace("/", "_")  # fmt: skip
    (rng.choice(places) / name).write_bytes(rng.choice([b"", b"PAR1", b"x" * 100]))


def not_utf8(folder: Path, rng: random.Random) -> None:
    places = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    place = os.fsencode(rng.choice(places))
    with open(place + b"/" + rng.choice([b"\xff\xfe", b"shard-\xff.parquet"]), "wb") as file:
        file.write(b"x")


def record(folder: Path, rng: random.Random) -> None:
    """study.json or summary.json with a key changed."""
    paths = [path for path in anything(folder) if path.suffix == ".json"]
    if path := some(paths, rng):
        try:
            content = whole = json.loads(path.read_text())
            key = rng.choice(sorted(content))
        except (ValueError, TypeError, IndexError, RecursionError):
            return
        odd = [None, 0, -1, 1e308, "", "x", [], {}, [[]], True, {"a": 1}, "[/red]", 2**70, 10**400,
               math.nan, -math.inf, "1", [0.5], 1e-320]  # fmt: skip
        inner = content[key]
        if isinstance(inner, dict) and inner and rng.random() < 0.5:
            content, key = inner, rng.choice(sorted(inner))
        content[key] = rng.choice(odd)
        if rng.random() < 0.2:
            content.pop(key)
        path.write_text(json.dumps(whole))


def study_text(folder: Path, rng: random.Random) -> None:
    """The stored study is another one, under its right hash: only its shards know."""
    from flatmin.study.identity import hash_of

    for path in folder.rglob("study.json"):
        try:
            content = json.loads(path.read_text())
            text = content["study"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return
        text = rng.choice(
            [text.replace("3", "4", 1), text + " ", "{}", "[]", "x", '{"method": 3}', "null",
             '{"method": {"learned_at": "x"}}', "[" * 100_000, '{"a": ' * 5000 + "1" + "}" * 5000]
        )  # fmt: skip
        content |= {"study": text, "sha256": hash_of(text)}
        path.write_text(json.dumps(content))


def toml_text(folder: Path, rng: random.Random) -> None:
    """The spec beside the record is edited."""
    for path in folder.rglob("study.toml"):
        text = path.read_text(errors="replace")
        old, new = rng.choice(
            [("seed = 3", "seed = 4"), ("steps = 60", "steps = 61"), ("[grid]", "[grid"),
             ('name = "study"', 'name = "[/red]"'), ("n = 20", "n = 21"),
             ("n = 20", "n = 20000000000"), ("d = 3", "d = 2"), ("depth = [2, 3]", "depth = [4]"),
             ("depth = [2, 3]", "depth = [2]"), ("repet", "\x00"),
             ('generator = "gaussian"', 'file = "../outside/fifo"\ntarget = "y"')]
        )  # fmt: skip
        path.write_text(text.replace(old, new))


def bomb(folder: Path, rng: random.Random) -> None:
    """A file of a few kilobytes that says it has millions of rows, and has them."""
    if path := some(shards(folder), rng):
        table = pq.read_table(path)
        name = rng.choice(["run", "excess_risk", "x"])
        rows = 3_000_000
        huge = pa.table({name: pa.array(np.zeros(rows))})
        edit(path, huge, table.schema.metadata)


def leftovers(folder: Path, rng: random.Random) -> None:
    """What a killed process leaves."""
    places = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    (rng.choice(places) / f".shard-{rng.randrange(99)}.123.part.parquet").write_bytes(b"half")


def failures(folder: Path, rng: random.Random) -> None:
    """What would say that shards failed waits, flows or nests for ever."""
    place = folder / "failures"
    if not place.is_symlink() and (place.is_dir() or not place.exists()):
        place.mkdir(exist_ok=True)
        for path in (place / f"{name}.json" for name in "abcd"):
            path.unlink(missing_ok=True)
        os.mkfifo(place / "a.json")
        (place / "b.json").symlink_to("/dev/zero")
        (place / "c.json").write_text("[" * 100_000)
        (place / "d.json").write_bytes(b"\xff")


def npz(folder: Path, rng: random.Random) -> None:
    """Arrays of a run with other names, shapes, types or values, or pickles that would touch."""
    if path := some(sorted(folder.rglob("*.npz")), rng):
        try:
            arrays = dict(np.load(path))
        except Exception:
            return
        if not arrays:
            return
        key = rng.choice(sorted(arrays))
        value = arrays[key]
        odd = [np.zeros((0, 0)), np.full_like(value, np.nan), value.astype(str), np.array(3.0)]
        odd += [value[..., None], np.full(value.shape, 1e300), value.astype(complex)]
        odd += [_pickled(folder)]
        arrays[key] = rng.choice(odd)
        if rng.random() < 0.2:
            arrays.pop(key)
        np.savez(path, **arrays)


def _index_text(folder: Path) -> str:
    """The index; an OSError where an earlier damage left a pipe or a terabyte of nothing."""
    path = folder / INDEX
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 24:
        raise OSError("no index to change")
    return path.read_text()


def fresh_index(folder: Path, **other: Any) -> None:
    """The index as it would be had these very files been written or read here, whatever is in them;
    with `other` values of its own."""
    path, content = folder / INDEX, json.loads(_index_text(folder))
    stamps = [listing(folder / kind) for kind in ("runs", "traces")]
    marks = [[there[file_name(name)] for name in content["shards"]] for there in stamps]
    content["rows"], content["traces"] = ([*zip(*one, strict=True)] for one in marks)
    path.write_text(json.dumps(content | other))


def forged_index(folder: Path, rng: random.Random) -> None:
    """It speaks for files that were never read, in numbers and words that no run has."""
    shards_there = len(json.loads(_index_text(folder))["shards"])
    states = ["settled", "learned", rng.choice(["[/red]", "\x1b[31m", "x" * 500, "diverged"])]
    odd = [-1, 0, 2**62, 10**300, 3]
    counts = [[rng.choice(odd) for _ in range(shards_there)] for _ in states]
    fresh_index(folder, states=states, counts=counts)


def index(folder: Path, rng: random.Random) -> None:
    """An index that is cut, huge, of another study, of other files or no file at all."""
    path, text = folder / INDEX, _index_text(folder)
    content = json.loads(text)
    kind = rng.randrange(9)
    if kind == 0:
        path.write_text(text[: rng.randrange(len(text))])
    elif kind == 1:  # of another study
        path.write_text(json.dumps(content | {"study": content["study"][::-1]}))
    elif kind == 2:  # stamps in the wrong places
        rows = [rng.sample(column, len(column)) for column in content["rows"]]
        path.write_text(json.dumps(content | {"rows": rows}))
    elif kind == 3:
        os.truncate(path, 1 << 40)
    elif kind == 4:
        odd = [None, [], {}, "x", 1, [[]], [[1]], [["x"]], "[" * 9, [{}], [[None] * 4] * 4]
        content[rng.choice(sorted(content))] = rng.choice(odd)
        path.write_text(json.dumps(content))
    elif kind == 5:
        path.write_text(rng.choice(["[" * 100_000, "null", "{}", "", "NaN", '"x"', "9" * 5000]))
    else:
        path.unlink()
        if kind == 6:
            os.mkfifo(path)
        elif kind == 7:
            link_out(path, folder, rng)
        else:
            path.mkdir()


def flip_in_time(folder: Path, rng: random.Random) -> None:
    """A bit of a shard, with its size and its time of change as they were."""
    if path := some(shards(folder), rng):
        was = path.stat()
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def huge(folder: Path, rng: random.Random) -> None:
    """A file that seems to have a terabyte."""
    if path := some(anything(folder), rng):
        os.truncate(path, 1 << 40)


class _Touch:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def _pickled(folder: Path) -> Any:
    array = np.empty(1, dtype=object)
    array[0] = _Touch(str(folder.parent / OUTSIDE / "touched"))
    return array


EDITS = {
    "fewer rows": fewer, "more rows": more, "mixed rows": mixed, "a value": other_value,
    "no column": no_column, "a name": new_name, "a type": new_type, "more columns": more_columns,
}  # fmt: skip
DAMAGE = {
    **{name: rewritten(change) for name, change in EDITS.items()},
    "metadata": metadata, "a bit of any file": flip, "a bit": flip_shard, "cut": truncate,
    "spliced": splice, "swapped": swap, "traces as runs": traces_as_runs, "no file": remove,
    "no shard": remove_shard, "no folder": remove_folder, "a file for a folder": file_for_folder,
    "a pipe": replaced(lambda path, folder, rng: os.mkfifo(path)),
    "a folder for a file": replaced(lambda path, folder, rng: path.mkdir()),
    "a link out": replaced(link_out), "a loop": replaced(link_loop), "a device": replaced(link_odd),
    "a folder outside": folder_link, "foreign": foreign, "not UTF-8": not_utf8, "record": record,
    "study text": study_text, "spec": toml_text, "bomb": bomb, "leftovers": leftovers,
    "arrays": npz, "failures": failures, "index": index, "a bit in time": flip_in_time,
    "huge": huge,
}  # fmt: skip
FORGED = {f"forged {name}": forged(change) for name, change in EDITS.items()}
FORGED["forged index"] = forged_index
# What no reader can notice of itself: the folder says it consistently.
UNSEEN = {*FORGED, "study text", "metadata", "record", "swapped", "spliced", "a bit of any file"}
