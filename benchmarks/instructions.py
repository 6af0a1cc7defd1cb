"""Instructions of a step, counted by valgrind: what a processor does, whatever its clock.

Two runs of different length are counted, and their difference is divided by the steps between them:
start and end cancel. Valgrind knows no AVX-512, so kernels are compiled for AVX2, on one thread.

The fewest that a step could take: of each weight three fused multiply-adds, one of which loads it
from memory and one of which is followed by a store, with four networks in a register.

    python -m benchmarks.instructions CASE STEPS    (what is counted)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.harness import Result, Spread, seconds
from flatmin.core.errors import SettingError
from flatmin.network.architecture import Architecture

NETWORKS, LANES = 8, 4
SETTING = {
    "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "", "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1", "FLATMIN_THREADS": "1", "PYTHONHASHSEED": "0",
}  # fmt: skip
# The architecture, the scale of its weights, and the steps of the longer run.
STEPPED = {
    "d5": (Architecture.mlp(5, 10), 0.4, 20_000),
    "d20": (Architecture.mlp(20, 5), 0.2, 4_000),
    "d64": (Architecture.residual(64, 10, np.eye(64)[0]), 0.25, 200),
}
_COUNTED = re.compile(r"Collected : (\d+)")


def work(case: str, steps: int) -> None:
    """So many steps of each network; with the kernels of long runs."""
    from benchmarks.descent import NEVER, start
    from benchmarks.rivals import RATE
    from flatmin.data.generators import gaussian_samples
    from flatmin.dynamics import backends
    from flatmin.dynamics.descent import descend

    architecture, scale, _ = STEPPED[case]
    backends._HELD_FLOPS = 0.0  # kernels of long runs, in a short one
    data = gaussian_samples(4 * architecture.inputs, architecture.inputs, seed=0).regression()
    ensemble = start(architecture, NETWORKS, scale)
    descend(data, ensemble, RATE, steps, tolerance=NEVER, observe_ends=False)


def instructions() -> Result:
    """Of the cases of square layers, beside the fewest."""
    if shutil.which("valgrind") is None:
        raise SettingError("instructions are counted by valgrind, which is not installed")
    first, shares, counts = 0.0, {}, {}
    for case, (architecture, _, steps) in STEPPED.items():
        first += seconds(lambda case=case: _run(case, 16))  # type: ignore[misc]
        short, long = (_counted(case, length) for length in (steps // 10, steps))
        counts[case] = (long - short) / (NETWORKS * (steps - steps // 10))
        fewest = 4 * architecture.parameters / LANES
        shares[case] = Spread.of([fewest / counts[case]])
    each = ", ".join(f"{case} {count:.0f}" for case, count in counts.items())
    return Result(
        id="instructions",
        title=f"instructions of a network step on AVX2: {each}",
        unit="instructions (d5)",
        ours=Spread.of([counts["d5"]]),
        rivals={},
        ratios=shares,
        bar={},
        met=True,
        compile_seconds=first,
        notes="ratio: the fewest (three fused multiply-adds and a store of each weight) over ours",
    )


def _run(case: str, steps: int, *wrap: str) -> str:
    command = [*wrap, sys.executable, "-m", "benchmarks.instructions", case, str(steps)]
    found = subprocess.run(
        command, env=os.environ | SETTING, cwd=Path(__file__).parents[1], capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return found.stderr


def _counted(case: str, steps: int) -> int:
    said = _run(case, steps, "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
    found = _COUNTED.search(said)
    assert found is not None, said
    return int(found[1])


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
