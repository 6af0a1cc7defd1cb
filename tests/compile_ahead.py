"""Compiles the kernels that the tests need, before they run, on all cores.

It is a quarter of the suite's work. Tests that run side by side would each compile what they need,
some of it twice; here every kernel is compiled once. A kernel is compiled for its lanes (blocks are
narrow or wide) and its precision, all in one process, which has its helpers then.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from flatmin.core.threads import thread_count
from flatmin.curvature import sharpness
from flatmin.data.generators import gaussian_samples
from flatmin.dynamics.descent import descend
from flatmin.dynamics.flow import flow
from flatmin.dynamics.momentum import HeavyBall
from flatmin.dynamics.orbits import follow_orbits
from flatmin.dynamics.recording import Recording
from flatmin.dynamics.rule import PLAIN
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise

NARROW, WIDE = 1, 9  # networks: a block of four lanes, two blocks of eight
LINEAR, TANH = Architecture.mlp(2, 2), Architecture.mlp(2, 2, activation="tanh")
SAMPLES = gaussian_samples(4, 2)
DATA = SAMPLES.regression()
MOMENTUM = HeavyBall(learning_rate=1e-3, momentum=0.9).rule


def networks(size: int, architecture: Architecture = LINEAR) -> Ensemble:
    return initialise(architecture, "gaussian", 0.5, 0, [(i,) for i in range(size)])


def curvature_lanes() -> None:
    for size in (NARROW, WIDE):
        sharpness(DATA, networks(size))
        sharpness(SAMPLES, networks(size, TANH), certify=False)


def flow_kernel() -> None:
    two = gaussian_samples(4, 2, targets=2).regression()
    for size in (NARROW, WIDE * thread_count()):
        flow(DATA, networks(size), end=1e-3)
        flow(two, networks(size, Architecture.multivariate(2, 2, 2)), end=1e-3)


def samples_kernel() -> None:
    for size in (NARROW, WIDE):
        for rule in (PLAIN, MOMENTUM):
            descend(SAMPLES, networks(size, TANH), 1e-3, 1, threads=1, rule=rule)
    descend(SAMPLES, networks(WIDE, TANH), 1e-3, 1, threads=1, precision="float32")


def linear_kernel() -> None:
    """Without measurements first: who has a kernel that measures takes no other."""
    for recording in (None, Recording(1, ("sharpness",))):
        for size in (NARROW, WIDE):
            for rule in (PLAIN, MOMENTUM):
                descend(DATA, networks(size), 1e-3, 1, threads=1, recording=recording, rule=rule)
    descend(DATA, networks(NARROW), 1e-3, 1, precision="float32")


def orbits_kernel() -> None:
    for size in (NARROW, WIDE * thread_count()):
        follow_orbits(DATA, networks(size), 1e-3, 40)


# The longest first, so that the cores end together.
KERNELS: tuple[Callable[[], None], ...] = (
    *(linear_kernel, curvature_lanes, samples_kernel, flow_kernel, orbits_kernel),
)

if __name__ == "__main__":
    workers = min(os.cpu_count() or 1, len(KERNELS))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for job in [pool.submit(kernel) for kernel in KERNELS]:
            job.result()
