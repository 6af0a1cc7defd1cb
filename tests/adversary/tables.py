"""Tables: text, NPZ and Parquet files, good ones, odd ones and good ones with damage.

A file that is accepted is read again here by other means (Python's csv, NumPy's loader, pandas),
and the regression that `predict` reports is compared with NumPy's least squares.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import struct
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from adversary.grammar import numbered
from adversary.watchdog import Case, Watchdog, run_cases

EPS = float(np.finfo(float).eps)
NAMES = ("a", "b", "c", "d", "y")
NOWHERE = ("--depth", "3", "--no-measure", "--json")

# ---------------------------------------------------------------- what a table holds

numbers = st.one_of(
    st.floats(-100, 100).map(lambda x: f"{x:.4g}"),
    st.integers(-50, 50).map(str),
    st.floats(-1e3, 1e3).map(repr),
)
odd_cells = st.sampled_from(
    [
        *("", " ", "NA", "nan", "NaN", "inf", "-inf", "Infinity", "null", "None", "true", "False"),
        *("1e400", "-1e400", "1e-400", "1e139", "1e141", "-0", "+1", "--1", "+-1", "1_000", "1,5"),
        *("0x10", "1e", "e5", ".", "-", "+", "\u00b2", "\u0663", "\uff11", "1\u00a0000", "1 2"),
        *("\u221e", "NULL", "#N/A", "=1+1", "'1", '"1', '"1"', '""', '"a""b"', "\ufeff1", "\x00"),
        *("1\x00", "\x1b[31m1", "[/red]", "[bold]x", "1\r", "1\n2", "9" * 400, "0." + "1" * 400),
        *("0" * 5000 + "1", "x" * 200_000, "\U0001d7d9", "1\u200b", "\u200f1", "\ud7ff"),
        *("1d5", "1f", "5e-324", "2.2250738585072014e-308", "1.7976931348623157e308", "1/2", "50%"),
        *("$3", "1."),
    ]
)  # fmt: skip
odd_names = st.sampled_from(
    [
        *("a", "b", "y", "", " ", "1", "1.5", "y ", " y", "Y", "a,b", "[/red]", "[red]x"),
        *("\x1b[2J", "\x00", "n\nm", "\t", '"', "'", "\ufeff", "é", "日本", "x" * 5000),
        *("__index_level_0__",),
        *("\u202ey", "--json", "-", "\u00b2", "nan", "None", "X0", "c0", "\U0001f600", "a b"),
    ]
)  # fmt: skip


@st.composite
def grids(draw):
    """Names and rows of cells; mostly good."""
    d, n = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    names = [*NAMES[:d], "y"]
    rows = [[draw(numbers) for _ in names] for _ in range(n)]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        rows[draw(st.integers(0, n - 1))][draw(st.integers(0, d))] = draw(odd_cells)
    if draw(st.integers(0, 9)) == 0:
        names[draw(st.integers(0, d))] = draw(odd_names)
    return names, rows


@st.composite
def texts(draw, delimiter):
    """A text table as bytes."""
    names, rows = draw(grids())
    lines = [list(names), *rows]
    if draw(st.integers(0, 9)) == 0:  # ragged
        row = draw(st.sampled_from(lines))
        _ = row.append(draw(odd_cells)) if draw(st.booleans()) else row.pop()
    if draw(st.integers(0, 9)) == 0:
        lines.insert(
            draw(st.integers(0, len(lines))), draw(st.sampled_from([[], [""], [" "], ["#"]]))
        )
    quote = draw(st.sampled_from([False, False, True]))
    end = draw(st.sampled_from(["\n", "\n", "\r\n", "\r", "\n\n"]))
    cells = [[f'"{cell}"' if quote else cell for cell in row] for row in lines]
    text = end.join(delimiter.join(row) for row in cells) + draw(st.sampled_from([end, end, ""]))
    encoding = draw(
        st.sampled_from([*["utf-8"] * 40, "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"])
    )
    return text.encode(encoding, "replace")


# ---------------------------------------------------------------- NPZ, by hand


def npy(shape, dtype="<f8", data=b"", version=(1, 0), order=False, raw=None):
    """An .npy file with any header at all."""
    header = (
        raw
        if raw is not None
        else (f"{{'descr': {dtype!r}, 'fortran_order': {order!r}, 'shape': {shape!r}, }}")
    )
    content = header.encode("latin-1", "replace") + b"\n"
    size = struct.pack("<H" if version == (1, 0) else "<I", min(len(content), 65535))
    return b"\x93NUMPY" + bytes(version) + size + content + data


shapes = st.sampled_from(
    [
        *((3,), (4,), (), (0,), (3, 0), (0, 3), (3, 2), (3, 1, 1), (1,) * 40, (-1,), (2**31,)),
        *((2**62,), (2**63,), (2**64,), (10**30,), (2**31, 2**31), (2**62, 4), (1e3,)),
        *(("3",), None, (True,), (3, -3), ((3,),), 3, [3], "x", (10**9,), (10**12, 0), (0, 10**12)),
    ]
)  # fmt: skip
dtypes = st.sampled_from(
    [
        *("<f8", ">f8", "<f4", "<f2", "<i8", "|b1", "|O", "<U1000000000", "|S0", "|V8"),
        *("<c16", "<g", "<M8[ns]", "<m8", "x", "", "<f99", "<f8,<i4", "O", "<U3", "|S3", "<i1"),
        *("<f16", "<u8", "f8"),
    ]
)  # fmt: skip
headers = st.sampled_from(
    [
        *("", "{}", "{'descr': '<f8'}", "1", "[" * 2000, "\x00" * 99, "{", "("),
        "__import__('os').system('true')",
        "{'descr': [('a', '<f8'), ('b', '|O')], 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f8', 'fortran_order': 2, 'shape': (3,)}",
        "{'descr': ('<f8', (1000000000,)), 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), 'x': 1}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3L,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 9000 + ")}",
        "{" + "'a':" * 30000 + "1}",
    ]
)  # fmt: skip


MEMBERS = [
    *("a.npy", "b.npy", "y.npy", "X.npy", "a", "y", ".npy", "a/b.npy", "../a.npy", "a.npy.npy"),
    *("[/red].npy", "é.npy", "n\nm.npy"),
]


@st.composite
def members(draw):
    """A name and the bytes of a member of an NPZ archive."""
    name = draw(st.sampled_from(MEMBERS))
    n = draw(st.integers(0, 9))
    data = struct.pack(f"<{n}d", *[draw(st.floats(-9, 9)) for _ in range(n)])
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return name, draw(st.binary(max_size=60))
    if kind == 1:
        return name, npy((n,), data=data, raw=draw(headers))
    if kind == 2:
        return name, npy(
            (n,), version=draw(st.sampled_from([(2, 0), (3, 0), (9, 9), (0, 0)])), data=data
        )
    if kind < 6:
        return name, npy(draw(shapes), draw(dtypes), data)
    return name, npy((n,), data=data)


def _member(name):
    """A member with a date of its own: a case does not depend on when it is made."""
    return zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))


@st.composite
def archives(draw):
    """An NPZ archive; good columns first, then members of any kind."""
    n, out = draw(st.integers(2, 9)), io.BytesIO()
    method = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2,
                                   zipfile.ZIP_LZMA]))  # fmt: skip
    with zipfile.ZipFile(out, "w") as archive:
        for name in draw(st.sampled_from([("a", "y"), ("a", "b", "y"), ("a",), ()])):
            values = [draw(st.floats(-9, 9)) for _ in range(n)]
            archive.writestr(
                _member(f"{name}.npy"), npy((n,), data=struct.pack(f"<{n}d", *values)), method
            )
        for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # names twice
                name, content = draw(members())
                archive.writestr(_member(name), content, method)
    content = bytearray(out.getvalue())
    if draw(st.integers(0, 4)) == 0:  # encrypted, or packed in a way unknown here
        place, width = draw(st.sampled_from([(6, 8), (8, 10), (14, 16), (18, 20), (22, 24)])), 2
        at = content.find(b"PK\x01\x02")
        value = draw(st.sampled_from([1, 9, 12, 93, 99, 0xFFFF, 0x8000]))
        content[place[0] : place[0] + width] = struct.pack("<H", value)
        if at > 0:
            content[at + place[1] : at + place[1] + width] = struct.pack("<H", value)
    return bytes(content)


# ---------------------------------------------------------------- Parquet


KINDS = [
    *["good"] * 8,
    *("text", "list", "null", "odd", "time", "decimal", "dictionary", "half", "bool", "struct"),
]


@st.composite
def parquets(draw):
    """A Parquet file of odd types."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    n = draw(st.integers(0, 9))
    columns = {}
    for name in [*NAMES[: draw(st.integers(0, 3))], "y"]:
        values = [draw(st.floats(-9, 9)) for _ in range(n)]
        kind = draw(st.sampled_from(KINDS))
        columns[name] = {
            "good": lambda v=values: pa.array(v, pa.float64()),
            "text": lambda v=values: pa.array([f"t{x:.0f}" for x in v]),
            "list": lambda v=values: pa.array([[x] for x in v], pa.list_(pa.float64())),
            "null": lambda v=values: pa.array([None for x in v], pa.float64()),
            "odd": lambda v=values: pa.array([math.inf for x in v]),
            "time": lambda v=values: pa.array([int(x) for x in v], pa.timestamp("ns")),
            "decimal": lambda v=values: pa.array([int(x) for x in v], pa.int32()).cast(
                pa.decimal128(20, 2)
            ),
            "dictionary": lambda v=values: pa.array([f"{x:.0f}" for x in v]).dictionary_encode(),
            "half": lambda v=values: pa.array(np.array(v, np.float16)),
            "bool": lambda v=values: pa.array([x > 0 for x in v]),
            "struct": lambda v=values: pa.array(
                [{"q": x} for x in v], pa.struct([("q", pa.float64())])
            ),
        }[kind]()
    out = io.BytesIO()
    how = draw(st.sampled_from(["snappy", "none", "gzip", "zstd", "brotli", "lz4"]))
    pq.write_table(
        pa.table(columns), out, compression=how, row_group_size=draw(st.sampled_from([1, 99]))
    )
    return out.getvalue()


# ---------------------------------------------------------------- damage

SCRAPS = (
    *(
        b"\x00",
        b"\xff",
        b"\xfe\xff",
        b"\xef\xbb\xbf",
        b'"',
        b"\n",
        b"\r",
        b",",
        b"PK\x03\x04",
        b"PAR1",
    ),
    *(b"\x1f\x8b\x08", b"\x00" * 1000, b'"' * 999, b"," * 99999, b"\n" * 9999, b"\x1a"),
)


@st.composite
def damaged(draw, contents):
    """A file with up to three wounds."""
    content = draw(contents)
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3]))):
        place = draw(st.integers(0, len(content)))
        end = min(len(content), place + draw(st.integers(1, 40)))
        kind = draw(
            st.sampled_from(["cut", "flip", "insert", "remove", "again", "append", "zeros"])
        )
        if kind == "cut":
            content = content[:place]
        elif kind == "flip" and place < len(content):
            flipped = content[place] ^ (1 << draw(st.integers(0, 7)))
            content = content[:place] + bytes([flipped]) + content[place + 1 :]
        elif kind == "insert":
            content = content[:place] + draw(st.sampled_from(SCRAPS)) + content[place:]
        elif kind == "remove":
            content = content[:place] + content[end:]
        elif kind == "again":
            content = content[:end] + content[place:]
        elif kind == "append":
            content += draw(st.sampled_from(SCRAPS))
        elif kind == "zeros":
            content = content[:place] + bytes(end - place) + content[end:]
    return content


file_names = st.sampled_from(
    [
        *["t"] * 24,
        *("[/red]", "\udcff\udcfe", "日本", "a b", "n\nm", "x" * 240, "\x1b[31m", "%s{}", "-t"),
    ]
)
preparing = st.sampled_from(
        [
            *[()] * 30,
            *(("--missing", "drop"), ("--missing", "mean"), ("--missing", "x"), ("--intercept",)),
            *(("--standardise",), ("--drop", "a"), ("--drop", "a,b"), ("--features", "a")),
            ("--drop", "q"),
            *(("--one-hot", "a"), ("--one-hot", "y"), ("--features", "y"), ("--target", "a")),
            *(("--features", "X"), ("--drop", ""), ("--drop", ","), ("--drop", "[/red]")),
            ("--target", "b"),
        ]
)  # fmt: skip


def _packed(content):
    return gzip.compress(content, mtime=0)


SUFFIXES = [
    *[".csv"] * 12,
    *[".npz"] * 8,
    *[".parquet"] * 6,
    *(".pq", ".tsv", ".tsv", ".tab", ".npy", ".CSV", ".csv.gz", ".csv.gz", ".tsv.gz", "-", "-gz"),
    ".json",
]
COMMANDS = {
    "predict": NOWHERE,
    "train": ("--depth", "2", "--steps", "3", "--learning-rate", "0.001", "--json"),
    "atlas": (
        *("--depth", "2", "--rates", "0.5,1.5", "--starts", "1", "--steps", "50", "--runs", "1"),
        "--json",
    ),
}


@st.composite
def cases(draw):
    """A call of a command that reads a table."""
    suffix = draw(st.sampled_from(SUFFIXES))
    whole = {
        ".npz": archives(), ".parquet": parquets(), ".pq": parquets(),
        ".tsv": texts("\t"), ".tab": texts("\t"), ".tsv.gz": texts("\t").map(_packed),
        ".csv.gz": texts(",").map(_packed), "-gz": texts(",").map(_packed),
        ".npy": members().map(lambda pair: pair[1]),
    }.get(suffix, texts(","))  # fmt: skip
    if draw(st.integers(0, 19)) == 0:  # of another kind than its name says
        whole = draw(st.sampled_from([archives(), parquets(), texts(";"), st.binary(max_size=200)]))
    content = draw(damaged(whole))
    options = draw(preparing)
    command = draw(st.sampled_from(["predict"] * 18 + ["train", "atlas"]))
    rest = COMMANDS[command]
    if suffix in ("-", "-gz"):
        args = (command, "-", "--target", "y", *rest, *options)
        checked = _checked(content, "-", options) if command == "predict" else None
        return Case(args, stdin=content, right=checked)
    name = draw(file_names) + suffix
    args = (command, "--target", "y", *rest, *options, "--", name)
    checked = _checked(content, name, options) if command == "predict" else None
    return Case(args, files={name: content}, right=checked)


# ---------------------------------------------------------------- what a right answer is


class Unknown(Exception):
    """The oracle does not read this file."""


def _checked(content, name, options):
    def check(answer, folder):
        try:
            found = json.loads(answer.out)
        except ValueError:
            return "an answer that is no JSON"
        if options:
            return None
        try:
            X, y = _read(content, name)
        except Unknown:
            return None
        return _compare(found, X, y)

    return check


def _read(content, name):
    """Features and target, by other means than flatmin's."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise ValueError("gzip") from error
    low = name.lower().removesuffix(".gz")
    if name == "-":  # standard input has no name: its first bytes say what it is
        low = {b"PK": ".npz", b"PA": ".parquet"}.get(content[:2], low)
    if low.endswith(".npz"):
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        if any(array.ndim != 1 for array in arrays.values()):
            raise Unknown
        return np.column_stack([v for k, v in arrays.items() if k != "y"]).astype(float), arrays[
            "y"
        ]
    if low.endswith((".parquet", ".pq")):
        import pandas as pd

        frame = pd.read_parquet(io.BytesIO(content))
        return frame.drop(columns="y").to_numpy(dtype=float), frame["y"].to_numpy(dtype=float)
    delimiter = "\t" if low.endswith((".tsv", ".tab")) else ","
    csv.field_size_limit(1 << 30)
    text = content.decode("utf-8-sig")
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
            if len(row) > 1 or "".join(row).strip()]  # fmt: skip
    names = [cell.strip() for cell in rows[0]]
    words = {"true": "1", "false": "0"}
    values = np.array([[float(words.get(c.strip().lower(), c)) for c in row] for row in rows[1:]])
    place = names.index("y")
    return np.delete(values, place, axis=1), values[:, place]


def _compare(found, X, y):
    n, d = X.shape
    if (found["n"], found["d"]) != (n, d):
        return f"{found['n']} rows and {found['d']} features; the file has {n} and {d}"
    wide, high = np.abs(X).max(), np.abs(y).max()
    if not (1e-100 < wide < 1e100 and 1e-100 < high < 1e100):
        return None
    top = np.linalg.eigvalsh((X / wide).T @ (X / wide) / n)[-1] * wide * wide
    if not math.isclose(found["largest_eigenvalue"], top, rel_tol=1e-10):
        return f"largest eigenvalue {found['largest_eigenvalue']}; NumPy has {top}"
    w = np.linalg.lstsq(X, y, rcond=None)[0]
    risk = float(np.mean((y - X @ w) ** 2))
    # Backward stable solvers differ in the residual by eps times the condition number.
    scale = np.linalg.svd(X, compute_uv=False)
    room = 1e4 * EPS * high * high * max(1.0, scale[0] / scale[-1] if scale[-1] > 0 else math.inf)
    if not abs(found["risk_min"] - risk) <= room + 1e-9 * risk:
        return f"risk_min {found['risk_min']}; NumPy has {risk}"
    return None


EXAMPLE = str(Path(__file__).parents[2] / "examples" / "gaussian.csv")
WARM = tuple((name, EXAMPLE, "--target", "y", *rest) for name, rest in COMMANDS.items())


def run(count, seed=0, first=0):
    """Cases first .. first + count - 1 of a seed."""
    return run_cases(numbered(cases(), count, seed, first), Watchdog(WARM))
