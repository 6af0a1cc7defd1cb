"""A small study of 24 shards, run as a person runs it, and its results as bytes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flatmin.study.shard_files import encode
from flatmin.study.store import Store
from forks import Fork, Forks

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
# For `Forks`: a check of the spec loads the kernels of a run, for wide blocks and narrow ones.
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


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """flatmin as a process of its own."""
    return subprocess.Popen(
        command(*arguments, **options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def forks(folder: Path, spec: Path, ready: str = "", **environment: str) -> Iterator[Forks]:
    """For a fixture: processes that begin with flatmin imported and the spec's kernels loaded."""
    folder.mkdir()
    running = Forks(folder, READY.format(spec=str(spec)) + ready, **environment)
    yield running
    running.close()


def finish(process: subprocess.Popen[str] | Fork) -> tuple[int, str, str]:
    """Exit code, output and errors of a process that ends by itself."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


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
