"""What `flatmin.jax` offers: the probes of `flatmin.torch` for a function and a pytree.

The loss is loss(parameters, batch), a mean over samples. `batches` is a list or an iterator of
batches, gone through once; a tuple, a dictionary or an array is one batch.
"""

from __future__ import annotations

from typing import Any

from flatmin.probes import density as densities
from flatmin.probes import measure
from flatmin.probes.density import Density
from flatmin.probes.jax_model import JaxModel, Loss
from flatmin.probes.record import Along, Probe, Spectrum, Trace


def sharpness(
    loss: Loss,
    parameters: Any,
    batches: Any,
    *,
    tolerance: float = 1e-2,
    confidence: float = 0.999,
    budget: int | None = None,
    start: Any = None,
    seed: int = 0,
) -> Probe:
    """The largest signed eigenvalue as an interval, in at most `budget` products."""
    return measure.largest(
        JaxModel(loss, parameters, batches),
        tolerance=tolerance,
        confidence=confidence,
        budget=budget,
        start=start,
        seed=seed,
    )


def spectrum(
    loss: Loss,
    parameters: Any,
    batches: Any,
    k: int = 5,
    *,
    tolerance: float = 1e-2,
    confidence: float = 0.999,
    budget: int | None = None,
    seed: int = 0,
) -> Spectrum:
    """The top k and the bottom k eigenvalues with their residuals."""
    model = JaxModel(loss, parameters, batches)
    return measure.ends(
        model, k, tolerance=tolerance, confidence=confidence, budget=budget, seed=seed
    )


def density(
    loss: Loss, parameters: Any, batches: Any, *, vectors: int = 8, steps: int = 50, seed: int = 0
) -> Density:
    """The density of eigenvalues, with its error; it has a `plot`."""
    model = JaxModel(loss, parameters, batches)
    return densities.density(model, vectors=vectors, steps=steps, seed=seed)


def trace(loss: Loss, parameters: Any, batches: Any, *, vectors: int = 30, seed: int = 0) -> Trace:
    """The trace with its standard error, a product a random vector."""
    return densities.trace(JaxModel(loss, parameters, batches), vectors=vectors, seed=seed)


def along(loss: Loss, parameters: Any, batches: Any, direction: Any = "gradient") -> Along:
    """Slope and curvature along a direction: flat, a tree, or "gradient"."""
    return measure.along(JaxModel(loss, parameters, batches), direction)


def per_layer(
    loss: Loss,
    parameters: dict[str, Any],
    batches: Any,
    *,
    tolerance: float = 1e-2,
    confidence: float = 0.999,
    budget: int | None = None,
    seed: int = 0,
) -> dict[str, Probe]:
    """The largest eigenvalue of the diagonal block of each entry of a dictionary of parameters."""
    found = {}
    kept = batches if isinstance(batches, (tuple, dict)) else list(batches)
    for name, block in parameters.items():

        def of_block(one: Any, batch: Any, name: str = name) -> Any:
            return loss({**parameters, name: one}, batch)

        found[name] = sharpness(
            of_block,
            block,
            kept,
            tolerance=tolerance,
            confidence=confidence,
            budget=budget,
            seed=seed,
        )
    return found
