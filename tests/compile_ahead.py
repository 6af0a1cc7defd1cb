"""Compiles kernels that later tests need, in a process of its own while the first tests run.

The tests run on one core and compile for two minutes; what is compiled here they find on disk.
"""

from __future__ import annotations

import numpy as np

import test_descent
import test_flow_kernel
import test_samples_kernel
from flatmin.dynamics.descent import descend
from flatmin.network import Architecture


def flow(lanes: int) -> None:
    case, flat = test_flow_kernel.start(test_flow_kernel.RESIDUAL, 1)
    test_flow_kernel.run(case, flat, lanes=lanes, end=1e-3)


def samples(lanes: int, dtype: type = np.float64) -> None:
    architecture = test_samples_kernel.SHAPES[0]
    start = test_samples_kernel.start(architecture, 1, 2)
    test_samples_kernel.descend(architecture, *start, 1e-3, 1, lanes=lanes, dtype=dtype)


def several_outputs() -> None:
    data, ensemble = test_descent.setting(Architecture.multivariate(3, 3, 2), 4)
    descend(data, ensemble, 1e-3, 1)


def single_precision() -> None:
    data, ensemble = test_descent.setting(Architecture.mlp(5, 4), 4)
    descend(data, ensemble, 1e-3, 1, precision="float32")


if __name__ == "__main__":
    # In the order in which the tests ask for them.
    flow(4)
    samples(4)
    several_outputs()
    samples(8)
    single_precision()
    flow(8)
    samples(8, np.float32)
