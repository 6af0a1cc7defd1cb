"""The readers under atheris, which looks for bytes that reach new code.

    pip install atheris          (the extra `attack`)
    python tests/adversary/coverage_guided.py FOLDER -max_total_time=600

FOLDER keeps what was found. The rule: a table is read, or a FlatminError says what is wrong;
anything else ends the run with the bytes that did it.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["flatmin.data.tables"]):
    from flatmin.data.tables import open_table
from flatmin.core.errors import FlatminError
from flatmin.data.tables.table import Reading

SUFFIXES = (".csv", ".tsv", ".npz", ".parquet", ".csv.gz")
PLACE = Path(tempfile.mkdtemp(prefix="adversary-"))


def one_input(content: bytes) -> None:
    """The first byte chooses the format and how missing values are taken."""
    if not content:
        return
    kind, missing = divmod(content[0] % (2 * len(SUFFIXES)), 2)
    path = PLACE / f"t{SUFFIXES[kind]}"
    path.write_bytes(content[1:])
    with suppress(FlatminError):
        for _ in open_table(path, Reading("y", missing=bool(missing))).rows():
            pass


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
