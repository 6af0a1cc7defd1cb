"""The rivals, written the way an ordinary and an expert user would, and the machine's own limit.

A: JAX, one network at a time, a jitted step in a Python loop, the network applied to all samples.
B: JAX, jit(vmap(scan(grad))) over 160 networks, the network applied to all samples.
B+: as B, by someone who knows that the network is linear and multiplies p'W_L...W_1 first.
C: diffrax, jit(vmap(diffeqsolve)) for gradient flow.
D: the fused-multiply-add peak of the cores in use, by ten independent chains per core, with vectors
of 4, 8 or 16 lanes: the fastest of them.
M: the loads and stores of the weights alone (read, then read and written), in the same cache.
copy: the bytes of a step, read twice and written once, at the rate of copying an array larger than
any cache (its reads and writes counted, not what the machine fetches before it writes).
one: ours with one thread. D one: what D itself gains by all threads, in the same rounds: no program
gains more.
F: JAX and SciPy, one network at a time, an eigensolver and a convex solver in every substep.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Contender, seconds
from flatmin.core.arrays import aligned
from flatmin.core.threads import over_blocks, thread_count
from flatmin.data.samples import Samples
from flatmin.lanes.compiling import compiled
from flatmin.lanes.tiles import put
from flatmin.lanes.vectors import fma, splat, vectors
from flatmin.network.architecture import Architecture

RATE = 0.01
NETWORKS_OF_B = 160


def jax_risk(
    samples: Samples, architecture: Architecture, reordered: bool = False
) -> Callable[[Any], Any]:
    """The mean squared error of a list of weights, as a JAX user writes it."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    X, y, p = jnp.asarray(samples.X), jnp.asarray(samples.y), jnp.asarray(architecture.p)

    def phi(x: Any) -> Any:
        return x if architecture.linear else jax.nn.gelu(x, approximate=True)

    def network(layers: Any) -> Any:
        h = X.T
        for matrix in layers[:-1]:
            h = phi(matrix @ h)
        return jnp.mean((p @ (layers[-1] @ h) - y) ** 2)

    def product(layers: Any) -> Any:
        w = p
        for matrix in reversed(layers):
            w = w @ matrix
        return jnp.mean((X @ w - y) ** 2)

    return product if reordered else network


def one_at_a_time(
    samples: Samples, architecture: Architecture, flat: Any, steps: int
) -> tuple[Contender, float]:
    """Rival A."""
    import jax

    gradient = jax.grad(jax_risk(samples, architecture))

    @jax.jit
    def step(layers):
        return [w - RATE * g for w, g in zip(layers, gradient(layers), strict=True)]

    start = [jax.numpy.asarray(w) for w in architecture.split(flat[0])]

    def work() -> None:
        layers = start
        for _ in range(steps):
            layers = step(layers)
        layers[0].block_until_ready()

    return work, float(steps)


def all_at_once(
    samples: Samples, architecture: Architecture, flat: Any, steps: int, reordered: bool = False
) -> tuple[Contender, float]:
    """Rival B, or B+ if reordered."""
    import jax

    gradient = jax.grad(jax_risk(samples, architecture, reordered))

    def run(layers):
        def step(state, _):
            return [w - RATE * g for w, g in zip(state, gradient(state), strict=True)], None

        return jax.lax.scan(step, layers, None, length=steps)[0]

    together = jax.jit(jax.vmap(run))
    copies = np.resize(flat, (NETWORKS_OF_B, flat.shape[1]))
    start = [jax.numpy.asarray(w) for w in architecture.split(copies)]
    return lambda: together(start)[0].block_until_ready(), float(NETWORKS_OF_B * steps)


@compiled
def _chains(lanes, repeats, out):
    """Ten independent chains of FMAs, enough to fill two pipes of latency four or five."""
    m, c = splat(lanes, 0.999999), splat(lanes, 1e-6)
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = s8 = s9 = splat(lanes, 0.0)
    for _ in range(repeats):
        s0, s1, s2 = fma(s0, m, c), fma(s1, m, c), fma(s2, m, c)
        s3, s4, s5 = fma(s3, m, c), fma(s4, m, c), fma(s5, m, c)
        s6, s7, s8, s9 = fma(s6, m, c), fma(s7, m, c), fma(s8, m, c), fma(s9, m, c)
    put(vectors(lanes, out), 1, (s0, s1, s2, s3, s4, s5, s6, s7, s8, s9))


_WIDTHS = (4, 8, 16)


def _at_peak(width: int, threads: int, repeats: int) -> Contender:
    out = np.zeros((threads, 10 * width))

    def work() -> None:
        over_blocks(
            lambda first, last: _chains((0.0,) * width, repeats, out[first]), threads, threads
        )

    return work


def machine_limit(
    flops_per_unit: float, threads: int | None = None, flops: float = 3.2e9
) -> tuple[Contender, float]:
    """Rival D: the time that the unit of work would take at the machine's peak.

    The width of the vectors is that which is fastest now, of three tries each.
    """
    threads = threads or thread_count()
    trials = {}
    for width in _WIDTHS:
        repeats = int(flops / (20 * width))
        _at_peak(width, threads, 1)()
        trials[min(seconds(_at_peak(width, threads, repeats // 8)) for _ in range(3))] = width
    width = trials[min(trials)]
    repeats = int(flops / (20 * width))
    return _at_peak(width, threads, repeats), 20.0 * width * repeats * threads / flops_per_unit


@compiled
def _streamed(lanes, array, repeats):
    """The array read, then read and written, and again."""
    x, count = vectors(lanes, array), len(array) // (4 * len(lanes))
    s0 = s1 = s2 = s3 = splat(lanes, 0.0)
    for _ in range(repeats):
        for e in range(0, 4 * count, 4):
            s0, s1, s2, s3 = s0 + x[e], s1 + x[e + 1], s2 + x[e + 2], s3 + x[e + 3]
        for e in range(0, 4 * count, 4):
            x[e], x[e + 1], x[e + 2], x[e + 3] = -x[e], -x[e + 1], -x[e + 2], -x[e + 3]
    put(x, 1, (s0, s1, s2, s3))


def traffic_limit(numbers: int, per_unit: int, moved: float = 3e9) -> tuple[Contender, float]:
    """Rival M: loads and stores of as many `numbers` as a core works on at a time.

    A unit of work passes through `per_unit` of them.
    """
    threads = thread_count()
    size = -(-numbers // 32) * 32
    arrays = [aligned((size,)) for _ in range(threads)]
    repeats = max(1, int(moved / (8 * size)))

    def work() -> None:
        over_blocks(lambda i, _: _streamed((0.0,) * 8, arrays[i], repeats), threads, threads)

    return work, float(size) * repeats * threads / per_unit


def copying(numbers: int, bytes_per_unit: float) -> tuple[Contender, float]:
    """Rival copy: as many numbers copied by the threads in use, half of them each."""
    threads = thread_count()
    source, goal = np.ones(numbers), np.ones(numbers)

    def work() -> None:
        over_blocks(
            lambda first, last: np.copyto(goal[first:last], source[first:last]), numbers, threads
        )

    return work, 16.0 * numbers / bytes_per_unit
