"""What `flatmin.jax` offers: the probes of `flatmin.torch` for a function and a pytree.

- The loss is loss(parameters, batch), a mean over samples. With `model` it is
  loss(model(parameters, inputs), targets), and batches are pairs: `matrix` may then be
  "Gauss-Newton".
- `batches` is a list or an iterator of batches, gone through once; a tuple, a dictionary or an
  array is one batch.
- `chunk` is the number of samples that are differentiated at a time: it bounds the memory.
- `stop` are `tolerance`, `confidence`, `budget` and `seed` of `sharpness`.
"""

from __future__ import annotations

from typing import Any, Unpack

from flatmin.core.errors import SettingError
from flatmin.probes import density as densities
from flatmin.probes import measure
from flatmin.probes.density import Density
from flatmin.probes.jax_model import Function, JaxModel
from flatmin.probes.measure import Stop
from flatmin.probes.record import Along, Probe, Spectrum, Trace

Output = Function | None


def sharpness(
    loss: Function,
    parameters: Any,
    batches: Any,
    *,
    tolerance: float = 1e-2,
    confidence: float = 0.999,
    budget: int | None = None,
    start: Any = None,
    seed: int = 0,
    model: Output = None,
    matrix: str = "Hessian",
    chunk: int | None = None,
) -> Probe:
    """The largest signed eigenvalue as an interval, in at most `budget` products."""
    operator = JaxModel(loss, parameters, batches, model, matrix, chunk)
    return measure.largest(
        operator, tolerance=tolerance, confidence=confidence, budget=budget, start=start, seed=seed
    )


def spectrum(
    loss: Function, parameters: Any, batches: Any, k: int = 5, *,
    model: Output = None, matrix: str = "Hessian", chunk: int | None = None, **stop: Unpack[Stop],
) -> Spectrum:  # fmt: skip
    """The top k and the bottom k eigenvalues with their residuals."""
    return measure.ends(JaxModel(loss, parameters, batches, model, matrix, chunk), k, **stop)


def density(
    loss: Function, parameters: Any, batches: Any, *,
    model: Output = None, matrix: str = "Hessian", chunk: int | None = None,
    vectors: int = 8, steps: int = 50, seed: int = 0,
) -> Density:  # fmt: skip
    """The density of eigenvalues, with its error; it has a `plot`."""
    operator = JaxModel(loss, parameters, batches, model, matrix, chunk)
    return densities.density(operator, vectors=vectors, steps=steps, seed=seed)


def trace(
    loss: Function, parameters: Any, batches: Any, *,
    model: Output = None, matrix: str = "Hessian", chunk: int | None = None,
    vectors: int = 30, seed: int = 0,
) -> Trace:  # fmt: skip
    """The trace with its standard error, a product a random vector."""
    operator = JaxModel(loss, parameters, batches, model, matrix, chunk)
    return densities.trace(operator, vectors=vectors, seed=seed)


def along(
    loss: Function, parameters: Any, batches: Any, direction: Any = "gradient", *,
    model: Output = None, matrix: str = "Hessian", chunk: int | None = None,
) -> Along:  # fmt: skip
    """Slope and curvature along a direction: flat, a tree, or "gradient"."""
    return measure.along(JaxModel(loss, parameters, batches, model, matrix, chunk), direction)


def per_layer(
    loss: Function, parameters: dict[str, Any], batches: Any, *,
    model: Output = None, matrix: str = "Hessian", chunk: int | None = None, **stop: Unpack[Stop],
) -> dict[str, Probe]:  # fmt: skip
    """The largest eigenvalue of the diagonal block of each entry of a dictionary of parameters."""
    if not isinstance(parameters, dict):
        kind = type(parameters).__name__
        raise SettingError(f"parameters must be a dictionary with an entry a layer, got {kind}")
    operator = JaxModel(loss, parameters, batches, model, matrix, chunk)
    return {name: measure.largest(operator.block(name), **stop) for name in parameters}
