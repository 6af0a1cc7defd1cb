"""The readers under atheris, which looks for bytes that reach new code.

    python tests/adversary/coverage_guided.py FOLDER -max_total_time=600

FOLDER keeps what was found, and begins with a good file of each kind. The rule: a file is read, or
a FlatminError says what is wrong; anything else ends the run with the bytes that did it. `make
attack` runs it (`readers`) where atheris, the extra `attack`, can be installed.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

READ = [
    "flatmin.data.tables",
    "flatmin.study",
    "flatmin.theory.certificate",
    "flatmin.lab.settings",
]
with atheris.instrument_imports(include=READ):
    from flatmin.core.errors import FlatminError
    from flatmin.data.generators import gaussian_samples
    from flatmin.data.tables import open_table
    from flatmin.data.tables.table import Reading
    from flatmin.lab.settings import from_address, setting_of
    from flatmin.study.index import NAME, read_index
    from flatmin.study.shard_files import deep_fault
    from flatmin.study.spec import STARTER, parse_spec
    from flatmin.theory.certificate import certify, read_certificate

PLACE = Path(tempfile.mkdtemp(prefix="adversary-"))
Reader = Callable[[bytes], object]


def _table(suffix: str, missing: bool) -> Reader:
    def read(content: bytes) -> None:
        path = PLACE / f"t{suffix}"
        path.write_bytes(content)
        for _ in open_table(path, Reading("y", missing=missing)).rows():
            pass

    return read


def _kept(name: str, read: Callable[[Path], object]) -> Reader:
    def inner(content: bytes) -> None:
        (PLACE / name).write_bytes(content)
        read(PLACE / name)

    return inner


def _shard(path: Path) -> None:
    assert deep_fault(path, "0" * 64), "no study has this hash"


def _npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, a=np.arange(3.0), y=np.arange(3.0))
    return out.getvalue()


def _parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"a": [1.0, 2.0], "y": [2.0, 1.0]}), out, compression="none")
    return out.getvalue()


def _certificate() -> bytes:
    certify(gaussian_samples(n=9, d=2, seed=0).regression(), 2).write(PLACE / "good.json")
    return (PLACE / "good.json").read_bytes()


_CSV = b"a,y\n1,2\n3,-4e0\n5,6\n"
_INDEX = {"study": "0", "shards": ["1"], "rows": [[1]] * 4, "traces": [[0]] * 4,
          "states": ["settled"], "counts": [[1]]}  # fmt: skip
_ADDRESS = b"seed=0&problem.paper=linear&architecture.depth=2&method.learning_rate=0.05"
# Every reader with a good file of its own.
READERS: list[tuple[Reader, bytes]] = [
    *(
        (_table(suffix, missing), content)
        for suffix, content in (
            (".csv", _CSV), (".tsv", _CSV.replace(b",", b"\t")), (".npz", _npz()),
            (".parquet", _parquet()), (".csv.gz", gzip.compress(_CSV, mtime=0)),
        )
        for missing in (False, True)
    ),
    (lambda content: parse_spec(content.decode("utf-8", "replace")), STARTER.encode()),
    (_kept("c.json", read_certificate), _certificate()),
    (lambda text: setting_of(from_address(text.decode("utf-8", "surrogateescape"))), _ADDRESS),
    (_kept(NAME, lambda path: read_index(path.parent, "0", 1)), json.dumps(_INDEX).encode()),
    (_kept("shard-0.parquet", _shard), _parquet()),
]  # fmt: skip


def one_input(content: bytes) -> None:
    """The first byte chooses the reader; what would only be printed counts too."""
    printed: list[object] = []
    sys.unraisablehook = lambda one: printed.append(one.exc_value)
    if content:
        with suppress(FlatminError):
            READERS[content[0] % len(READERS)][0](content[1:])
    assert not printed, printed


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, (_, good) in enumerate(READERS):
        (folder / f"good-{number}").write_bytes(bytes([number]) + good)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
