"""Run the tests as on other processors: one line a setting, exit code 1 if any of them fails.

A result is rounded differently where sums are vectorised differently, so a test that compares
rounding passes on one processor and fails on another. Three places choose instructions when a
program starts, and each can be told to choose others: the compiler of the kernels (Numba), the BLAS
of NumPy and SciPy (OpenBLAS), and NumPy's own loops.

    python scripts/test_processors.py                            every setting, all tests
    python scripts/test_processors.py old --tests tests/test_flow.py
    python scripts/test_processors.py --list
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import llvmlite.binding as llvm
from numpy._core import _multiarray_umath as umath

ROOT = Path(__file__).parent.parent

# NumPy refuses names that it does not know or the processor does not have, so it is asked for them.
_NUMPY_PATHS = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
_NUMPY_512 = [name for name in _NUMPY_PATHS if name == "X86_V4" or name.startswith("AVX512")]


def _without(names: list[str]) -> dict[str, str]:
    return {"NPY_DISABLE_CPU_FEATURES": " ".join(names)} if names else {}


@dataclass(frozen=True)
class Setting:
    """Variables for the tests, and the feature without which the processor cannot run them."""

    name: str
    about: str
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: str | None = None


# Kernels for "haswell" also need an empty list of features: without it Numba adds this machine's.
# (OpenBLAS's wheels have no kernels of their own for Zen: there it chooses Haswell's.)
SETTINGS = (
    Setting("own", "this machine as it is"),
    Setting(
        "kernels-haswell",
        "kernels for AVX2",
        {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""},
        "avx2",
    ),
    Setting("kernels-generic", "kernels for any x86-64 or ARM", {"NUMBA_CPU_NAME": "generic"}),
    Setting("blas-nehalem", "BLAS for SSE", {"OPENBLAS_CORETYPE": "Nehalem"}, "sse4.2"),
    Setting("blas-haswell", "BLAS for AVX2", {"OPENBLAS_CORETYPE": "Haswell"}, "avx2"),
    Setting("blas-zen", "BLAS as on AMD's Zen", {"OPENBLAS_CORETYPE": "Zen"}, "avx2"),
    Setting("blas-skylakex", "BLAS for AVX-512", {"OPENBLAS_CORETYPE": "SkylakeX"}, "avx512f"),
    Setting("numpy-avx2", "NumPy without AVX-512", _without(_NUMPY_512), "avx512f"),
    Setting("numpy-baseline", "NumPy without what it chooses at start", _without(_NUMPY_PATHS)),
    Setting(
        "old",
        "generic kernels, BLAS for AVX2, NumPy without AVX-512",
        {"NUMBA_CPU_NAME": "generic", "OPENBLAS_CORETYPE": "Haswell", **_without(_NUMPY_512)},
        "avx2",
    ),
)


def passes(setting: Setting, tests: list[str]) -> bool:
    """Run the tests with the setting and print the line."""
    if setting.needs is not None and not llvm.get_host_cpu_features().get(setting.needs):
        print(f"{setting.name:16} skipped: the processor has no {setting.needs}", flush=True)
        return True
    begin = time.monotonic()
    # Numba keeps kernels apart by processor and features, so all settings share one cache.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"} | setting.environment
    commands = [["-m", "pytest", "--tb=short", *tests]]
    if not tests:
        commands.insert(0, ["tests/compile_ahead.py"])
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            break
    lines = (done.stdout or done.stderr).strip().splitlines()
    verdict = "FAILED" if done.returncode else "passed"
    last = lines[-1] if lines else ""
    print(f"{setting.name:16} {verdict} {time.monotonic() - begin:5.0f} s  {last}", flush=True)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr, flush=True)
    return done.returncode == 0


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Run the tests as on other processors.")
    parser.add_argument("names", nargs="*", metavar="SETTING", help="default: all")
    parser.add_argument("--tests", nargs="+", default=[], help="files or tests; default: all")
    parser.add_argument("--list", action="store_true", help="print the settings and end")
    arguments = parser.parse_args()
    known = {setting.name: setting for setting in SETTINGS}
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no setting is called {', '.join(sorted(unknown))}; see --list")
    if arguments.list:
        for setting in SETTINGS:
            variables = " ".join(f'{name}="{to}"' for name, to in setting.environment.items())
            print(f"{setting.name:16} {setting.about}: {variables or 'nothing set'}")
        return
    chosen = [known[name] for name in arguments.names] or list(SETTINGS)
    results = [passes(setting, arguments.tests) for setting in chosen]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
