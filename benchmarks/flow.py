"""Gradient flow against diffrax: the same networks, data, tolerances and arrival times."""
# mypy: disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness import Contender, Result, compare
from flatmin.data.generators import gaussian_samples
from flatmin.data.samples import Samples
from flatmin.dynamics.flow import flow
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise

RTOL, ATOL, GRADIENT = 1e-8, 1e-11, 1e-10
NETWORKS, JUDGED = 200, 20


def flow_d5() -> Result:
    """200 networks of d = 5, L = 10, to gradient norm 1e-10."""
    architecture = Architecture.mlp(5, 10)
    ensemble = initialise(architecture, "gaussian", 0.4, 0, networks=NETWORKS)
    return _compare("flow-d5", gaussian_samples(seed=0), ensemble, 50.0)


def flow_outputs() -> Result:
    """200 networks of d = 5, L = 5 and three outputs, whose numbers of steps differ little: C takes
    as many for all as for the longest."""
    architecture = Architecture.multivariate(5, 5, 3)
    ensemble = initialise(architecture, "orthogonal", 0.8, 0, networks=NETWORKS)
    return _compare("flow-outputs", gaussian_samples(seed=0, targets=3), ensemble, 20.0)


def _compare(id: str, samples: Samples, ensemble: Ensemble, bar: float) -> Result:
    regression, architecture = samples.regression(), ensemble.architecture

    def ours() -> Any:
        return flow(regression, ensemble, rtol=RTOL, atol=ATOL, tolerance=GRADIENT)

    outcome = ours()
    flat, times = ensemble.flat(), outcome.extras["time"]
    rival = _diffrax(samples, architecture, flat, times)
    # Equal truth: what both make wrong of weights, against a tighter run of another solver.
    exact = np.asarray(_diffrax(samples, architecture, flat[:JUDGED], times[:JUDGED], tight=True)())
    wrong = {
        name: float(np.max(np.abs(np.asarray(found)[:JUDGED] - exact)))
        for name, found in (("ours", outcome.ensemble.flat()), ("C", rival()))
    }
    if not outcome.settled.all() or wrong["ours"] > wrong["C"]:
        raise AssertionError(f"{id}: errors of {wrong} are no fair comparison")
    outputs = "" if samples.targets == 1 else f", {samples.targets} outputs"
    what = f"d=5 L={architecture.depth}{outputs}, {NETWORKS} networks"
    return compare(
        id,
        f"flow, {what}, rtol 1e-8, to gradient norm 1e-10",
        "seconds per network",
        (ours, float(NETWORKS)),
        {"C": (rival, float(NETWORKS))},
        {"C": bar},
        rounds=5,
        notes="C stops at our arrival times; largest error of a weight "
        f"{wrong['ours']:.0e}, of C {wrong['C']:.0e}",
    )


def _diffrax(
    samples: Samples, architecture: Architecture, flat: Any, times: Any, tight: bool = False
) -> Contender:
    """Rival C: Tsit5, the fastest of its solvers here, with the gradient by jax.grad of the risk of
    the product of the layers; or, for the truth, Dopri8 at a tolerance of 1e-12.

    It is spared the search for the end: at rtol 1e-8 its gradient norm does not fall below about
    1e-6, so it integrates to the times at which our networks arrived.
    """
    import diffrax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    X, Y = jnp.asarray(samples.X), jnp.asarray(samples.y).reshape(len(samples.X), -1)
    cuts = list(zip(architecture.offsets[:-1], architecture.offsets[1:], strict=True))
    layers = list(zip(cuts, architecture.shapes, strict=True))
    last = jnp.asarray(architecture.output_map)

    def risk(w: Any) -> Any:
        product = last
        for (start, stop), shape in reversed(layers):
            product = product @ w[start:stop].reshape(shape)
        return jnp.sum((X @ product.T - Y) ** 2) / len(X)

    gradient = jax.grad(risk)
    solver, rtol, atol = (
        (diffrax.Dopri8(), 1e-12, 1e-15) if tight else (diffrax.Tsit5(), RTOL, ATOL)
    )

    def solve(w: Any, end: Any) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, w, _: -gradient(w)),
            solver,
            0.0,
            end,
            None,
            w,
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
            max_steps=100_000,
            throw=False,
        ).ys[0]

    together = jax.jit(jax.vmap(solve))
    start, ends = jnp.asarray(flat), jnp.asarray(times)
    return lambda: together(start, ends).block_until_ready()
