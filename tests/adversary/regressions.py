"""Cases that once gave a traceback, several lines, a wrong exit code or no answer.

python -m tests.adversary.regressions
"""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import struct
import sys
import warnings
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from adversary.tables import npy
from adversary.watchdog import Case, Watchdog

EXAMPLE = Path(__file__).parents[2] / "examples" / "gaussian.csv"
CSV = EXAMPLE.read_bytes()
PREDICT = ("predict", "--target", "y", "--depth", "3", "--no-measure", "--json")


def _archive(*members, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names twice
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), content, method)
    return bytearray(out.getvalue())


def _flagged(place, value):
    """An archive whose headers have other bytes at this place of the local one."""
    content = _archive(("a.npy", npy((3,), data=bytes(24))), ("y.npy", npy((3,), data=bytes(24))))
    for mark, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        at = content.find(mark)
        content[at + place + shift : at + place + shift + 2] = struct.pack("<H", value)
    return bytes(content)


def _unix_socket(folder):
    place = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(folder)  # its path must be short
    place.bind("s.csv")
    os.chdir(here)
    place.close()


def _table(name, content, *options):
    return Case((*PREDICT, *options, "--", name), {name: content})


def _option(*args):
    return Case((*args,), {"t.csv": CSV})


CERTIFICATE = {
    "format": "flatmin certificate 1", "depth": 2, "output_norm": 1.0, "lower": 1.0, "upper": 9.0,
    "t": 1.0, "x": [1.0], "factor": [[1.0]], "product": [[1.0]],
}  # fmt: skip
FAR = b"x0,y\n-100,0.3\n-889.5,1.8e-88\n1,48\n16,-22\n2.8e-66,-26\n1e139,827\n"
FINE = [
    *(
        (
            f"a column that overflows, {words[-1]}",
            Case(("train", "t.csv", "--target=y", "--depth=2", "--steps=5", *words),
                 {"t.csv": FAR.replace(b"827", b"8e138") if momentum else FAR}),
        )
        for momentum in (False, True)
        for words in [("--learning-rate=0.5critical", "--momentum=0.5") if momentum
                      else ("--learning-rate=0.001",)]
    ),
    ("gzip", _table("t.csv.gz", gzip.compress(CSV, mtime=0))),
    ("standard input", Case((*PREDICT, "-"), stdin=CSV)),
    ("gzip on standard input", Case((*PREDICT, "-"), stdin=gzip.compress(CSV, mtime=0))),
    ("a name that is no UTF-8", _table("\udcff.csv", CSV)),
    *(
        (
            f"central flow from a {init} far out",
            _option("train", "--depth=3", f"--init={init}", "--scale", scale, "--central",
                    "--learning-rate", rate, "--steps=200"),
        )
        for init, scale, rate in (
            ("zero-layer", "50", "0.01"), ("minimiser", "1e9", "0.01"), ("pytorch", "1", "1e308"),
        )
    ),
    (
        "a terminal of odd sizes",
        Case(("train", "--depth=2", "--steps=9", "--learning-rate=0.01"),
             env={"COLUMNS": "\u00b2", "LINES": "\u00b2"}),
    ),
    (
        "an atlas of one rate far out",
        _option("atlas", "--depth=2", "--rates=1e18", "--starts=1", "--steps=60", "--runs=1",
                "--out=atlas"),
    ),
    ("a name that is markup", _table("[/red].csv", CSV)),
    (
        "a picture of a run shorter than its stride",
        _option("train", "--depth=2", "--learning-rate=0.01", "--steps=20", "--record-every=1000",
                "--out=run"),
    ),
]  # fmt: skip
REFUSED = [
    ("an encrypted archive", _table("t.npz", _flagged(6, 1))),
    ("an unknown compression", _table("t.npz", _flagged(8, 93))),
    ("a shape beyond 64 bits", _table("t.npz", bytes(_archive(("y.npy", npy((10**30,))))))),
    ("a shape of 8 EiB", _table("t.npz", bytes(_archive(("y.npy", npy((2**60,))))))),
    ("a negative shape", _table("t.npz", bytes(_archive(("y.npy", npy((-1,))))))),
    ("a header of nothing", _table("t.npz", bytes(_archive(("y.npy", npy((), raw="[" * 2000)))))),
    (
        "a member twice",
        _table("t.npz", bytes(_archive(*2 * [("a.npy", npy((3,), data=bytes(24)))]))),
    ),
    (
        "a bomb of 4 GiB in an archive",
        _table(
            "t.npz",
            bytes(_archive(("y.npy", npy((2**29,)) + bytes(1 << 22)), method=zipfile.ZIP_DEFLATED)),
        ),
    ),
    ("a bomb of one line", _table("t.csv.gz", gzip.compress(bytes(1 << 27), 9, mtime=0))),
    *(
        (f"a row too long that ends in half a letter{where}", _table("t.csv", b"a,y\n1,2\n" + row))
        for where, row in (("", b"3,4,\xdc\n5,6\n"), (" and the file with it", b"3,4,\xdc"))
    ),
    ("half a gzip file", _table("t.csv.gz", gzip.compress(CSV, mtime=0)[:-99])),
    ("a Parquet name that is no UTF-8", _table("\udcff.parquet", CSV)),
    ("a pipe", Case((*PREDICT, "p.csv"), prepare=lambda folder: os.mkfifo(folder / "p.csv"))),
    ("a socket", Case((*PREDICT, "s.csv"), prepare=_unix_socket)),
    ("a folder", Case((*PREDICT, "d.csv"), prepare=lambda folder: (folder / "d.csv").mkdir())),
    ("a device", Case((*PREDICT, "/dev/zero"))),
    ("nothing on standard input", Case((*PREDICT, "-"))),
    *(
        (f"a depth of {text!r}", _option("predict", "t.csv", "--target", "y", f"--depth={text}"))
        for text in ("\u00b2", "\u0663", "+-3", "--3", "9" * 52, "", "nan", "inf", "1_0", "1e400")
    ),
    ("no depths", _option("predict", "t.csv", "--target", "y", "--depths=")),
    *(
        (f"a width of {width}", _option("train", "--depth", "3", "--width", width, *rest))
        for width in ("1e9", "1e14", "1e18", "9" * 52)
        for rest in (("--learning-rate", "0.01"), ("--flow",))
    ),
    ("runs", _option(*PREDICT[:-2], "--measure", "--runs", "1e12", "t.csv")),
    (
        "steps of an atlas of chaotic runs",
        _option("atlas", "--depth=2", "--rates=0.5,1.5", "--starts=1", "--runs=1",
                "--init=gaussian", "--steps=1e15"),
    ),
    ("runs of an atlas", _option("atlas", "--depth", "2", "--runs", "1e12")),
    ("starts of an atlas", _option("atlas", "--depth", "2", "--starts", "1e12")),
    (
        "records",
        _option("train", "--depth", "2", "--learning-rate", "0.01", "--steps", "1e14",
                "--record-every", "1"),
    ),
    (
        "a figure on a pipe",
        Case((*PREDICT, "--figure", "f.png", "t.csv"), {"t.csv": CSV},
             prepare=lambda folder: os.mkfifo(folder / "f.png")),
    ),
    *(
        (
            f"{name} as the file of {args[0]}",
            Case((*args, name), {"deep.json": b"[" * 10**6},
                 prepare=lambda folder: os.mkfifo(folder / "p")),
        )
        for name in ("p", "/dev/zero", "deep.json")
        for args in (("verify",), ("study", "run", "--out", "o"), ("study", "check"))
    ),
    *(
        (f"a rate of {rate}", _option("train", "--depth=2", f"--learning-rate={rate}", *rest))
        for rate in ("1e-308", "5e-324", "1e-308critical")
        for rest in ((), ("--momentum=0.9",), ("--central",), ("--biases", "--activation=relu"))
    ),
    (
        "a momentum of 10^400",
        Case(("study", "check", "s.toml"),
             {"s.toml": b'problem = {generator = "gaussian", n = 12, d = 3}\n'
                        b'architecture = {depth = 2}\ngrid = {scale = [0.3]}\n'
                        b'method = {name = "heavy-ball", steps = 9, learning_rate = 0.05, '
                        b"momentum = 1" + b"0" * 400 + b"}\n"}),
    ),
    (
        "a study of a million layers",
        Case(("study", "check", "s.toml"),
             {"s.toml": b'problem = {generator = "gaussian", n = 12, d = 3}\n'
                        b'architecture = {depth = 1e6, activation = "relu"}\n'
                        b"method = {steps = 20, learning_rate = 0.05}\ngrid = {scale = [0.3]}\n"}),
    ),
    *(
        (f"a lab at {host!r:.9}", Case(("lab", "--no-browser", "--port=0", f"--host={host}")))
        for host in ("\udcff", "\u202e", "\u00e9" * 100, "256.1.1.1")
    ),
    ("threads", Case(("train", "--depth", "2"), env={"FLATMIN_THREADS": "\u00b2"})),
    *(
        (f"a certificate with 10^400 as {name}", Case(("verify", "c.json"), {"c.json": content}))
        for name in ("t", "x", "factor", "depth")
        for content in [json.dumps(CERTIFICATE | {name: 10**400}).encode()]
    ),
]  # fmt: skip


def judged():
    """What is wrong with the cases of the list."""
    watchdog, wrong = Watchdog(((*PREDICT, str(EXAMPLE)),)), []
    for cases, code in ((FINE, 0), (REFUSED, 2)):
        for name, case in cases:
            answer, complaint = watchdog.run(case)
            if complaint is None and answer.code != code:
                complaint = f"exit code {answer.code}"
            if complaint is not None:
                wrong.append(f"{name}: {complaint}: {answer.lines()[-3:]}")
    return wrong


if __name__ == "__main__":
    print(json.dumps(found := judged(), indent=1))
    sys.exit(bool(found))
