"""A small study of 24 shards, run as a person runs it, and its results as bytes."""

from __future__ import annotations

import sys
from pathlib import Path

from flatmin.study.shard_files import encode
from flatmin.study.store import Store
from forks import Fork

# Two depths on twelve data sets; runs that converge, diverge and step out; with traces.
SPEC = """\
seed = 3
datasets = 12
repetitions = 30
problem = { generator = "gaussian", n = 30, d = 5 }
architecture = {}
method = { steps = 4000 }
record = { every = 1000, quantities = ["excess_risk", "sharpness"] }

[grid]
depth = [3, 6]
scale = [0.3, 0.6]
learning_rate = [0.02, 0.2]
"""
SHARDS = 24
MAIN = "from flatmin.cli import main; main()"
# A check of a spec loads the kernels of its runs.
READY = """\
import contextlib, io, sys
from flatmin.cli import main
sys.argv = ["flatmin", "study", "check", {spec!r}, "--threads", "1"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
import pyarrow.dataset, flatmin.study.runner
"""


def write_spec(folder: Path, text: str = SPEC) -> Path:
    """The spec as a file."""
    path = folder / "study.toml"
    path.write_text(text)
    return path


def command(*arguments: object, before: str = "") -> list[str]:
    """A process that runs flatmin, after the Python statements `before`."""
    return [sys.executable, "-c", f"{before}\n{MAIN}", *map(str, arguments)]


def finish(process: Fork) -> tuple[int, str, str]:
    """Exit code, output and errors of a copy that ends by itself."""
    out, err = process.communicate()
    return process.returncode, out, err


def ready(spec: Path) -> str:
    """For `forks`: flatmin imported, the spec's kernels loaded, for wide blocks and narrow ones."""
    return READY.format(spec=str(spec))


def results(directory: Path) -> tuple[bytes, bytes]:
    """The two tables of a study as files."""
    store = Store.open(directory)
    return encode(store.read_rows()), encode(store.read_traces())


def files(directory: Path) -> dict[str, bytes]:
    """Every file of a study that is not hidden; `study.json` has versions, so it belongs here."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def shard_files(directory: Path) -> list[Path]:
    """The finished shards' rows."""
    return sorted((directory / "runs").glob("shard-*.parquet"))
