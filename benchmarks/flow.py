"""Gradient flow against diffrax: the same networks, data, tolerances and arrival times."""
# mypy: disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness import Contender, Result, compare
from benchmarks.rivals import jax_risk
from flatmin.data.generators import gaussian_samples
from flatmin.data.samples import Samples
from flatmin.dynamics.flow import flow
from flatmin.network.architecture import Architecture
from flatmin.network.initialisation import initialise

RTOL, ATOL, GRADIENT = 1e-8, 1e-11, 1e-10


def flow_d5() -> Result:
    """200 networks of d = 5, L = 10, to gradient norm 1e-10."""
    samples, architecture = gaussian_samples(seed=0), Architecture.mlp(5, 10)
    regression = samples.regression()
    ensemble = initialise(architecture, "gaussian", 0.4, 0, networks=200)

    def ours() -> Any:
        return flow(regression, ensemble, rtol=RTOL, atol=ATOL, tolerance=GRADIENT)

    outcome = ours()
    rival = _diffrax(samples, architecture, ensemble.flat(), outcome.extras["time"])
    theirs = np.asarray(rival())
    gap = float(np.max(np.abs(theirs - outcome.ensemble.flat())))
    if not outcome.settled.all() or gap > 1e-5:
        raise AssertionError(f"flow-d5: the two sides disagree by {gap:.1e}")
    return compare(
        "flow-d5",
        "flow, d=5 L=10, 200 networks, rtol 1e-8, to gradient norm 1e-10",
        "seconds per network",
        (ours, 200.0),
        {"C": (rival, 200.0)},
        {"C": 20.0},
        rounds=5,
        notes=f"C stops at our arrival times; largest difference of a weight {gap:.0e}",
    )


def _diffrax(samples: Samples, architecture: Architecture, flat: Any, times: Any) -> Contender:
    """Rival C: Tsit5, the fastest of its solvers here, with the gradient by jax.grad.

    It is spared the search for the end: at rtol 1e-8 its gradient norm does not fall below about
    1e-6, so it integrates to the times at which our networks arrived.
    """
    import diffrax
    import jax
    import jax.numpy as jnp

    gradient = jax.grad(jax_risk(samples, architecture, reordered=True))
    offsets, shapes = architecture.offsets, architecture.shapes

    def field(t: Any, w: Any, _: Any) -> Any:
        layers = [
            w[start:stop].reshape(shape)
            for start, stop, shape in zip(offsets[:-1], offsets[1:], shapes, strict=True)
        ]
        return -jnp.concatenate([g.ravel() for g in gradient(layers)])

    def solve(w: Any, end: Any) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            0.0,
            end,
            None,
            w,
            stepsize_controller=diffrax.PIDController(rtol=RTOL, atol=ATOL),
            max_steps=100_000,
            throw=False,
        ).ys[0]

    together = jax.jit(jax.vmap(solve))
    start, ends = jnp.asarray(flat), jnp.asarray(times)
    return lambda: together(start, ends).block_until_ready()
