"""What `flatmin.torch` offers.

Every function takes a model, a loss and batches, and leaves the model's mode, parameters,
gradients, buffers and random state as they were. Matrices are those of the mean loss in the mode
that the model is in.

- A batch that is a pair has the loss loss(model(inputs), targets); any other batch has
  loss(model, batch). The loss is a mean over samples.
- `batches` is a batch, a list of batches or a loader, which is gone through once.
- `parameters` are names of `model.named_parameters()`; without them all that require a gradient.
- `matrix` is "Hessian" or "Gauss-Newton".
- `chunk` is the number of samples that are differentiated at a time: it bounds the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from flatmin.core.errors import SettingError
from flatmin.probes import density as densities
from flatmin.probes import measure
from flatmin.probes.density import Density
from flatmin.probes.record import Along, Probe, Spectrum, Trace
from flatmin.probes.torch_call import Loss
from flatmin.probes.torch_linear import linear_truth
from flatmin.probes.torch_model import TorchModel


def sharpness(
    model: nn.Module,
    loss: Loss,
    batches: Any,
    *,
    parameters: Sequence[str] | None = None,
    tolerance: float = 1e-2,
    confidence: float = 0.999,
    budget: int | None = None,
    start: Any = None,
    seed: int = 0,
    matrix: str = "Hessian",
    chunk: int | None = None,
) -> Probe:
    """The largest signed eigenvalue as an interval, in at most `budget` products.

    `start` is the vector of an earlier record: it is mixed with a random one.
    """
    operator = TorchModel(model, loss, batches, parameters, matrix, chunk)
    found = measure.largest(
        operator, tolerance=tolerance, confidence=confidence, budget=budget, start=start, seed=seed
    )
    if parameters is None and matrix == "Hessian":
        return replace(found, linear=linear_truth(model, loss, operator.batches))
    return found


def spectrum(
    model: nn.Module,
    loss: Loss,
    batches: Any,
    k: int = 5,
    *,
    parameters: Sequence[str] | None = None,
    tolerance: float = 1e-2,
    confidence: float = 0.999,
    budget: int | None = None,
    seed: int = 0,
    matrix: str = "Hessian",
    chunk: int | None = None,
) -> Spectrum:
    """The top k and the bottom k eigenvalues with their residuals."""
    operator = TorchModel(model, loss, batches, parameters, matrix, chunk)
    return measure.ends(
        operator, k, tolerance=tolerance, confidence=confidence, budget=budget, seed=seed
    )


def density(
    model: nn.Module,
    loss: Loss,
    batches: Any,
    *,
    parameters: Sequence[str] | None = None,
    vectors: int = 8,
    steps: int = 50,
    seed: int = 0,
    matrix: str = "Hessian",
    chunk: int | None = None,
) -> Density:
    """The density of eigenvalues, with its error; it has a `plot`."""
    operator = TorchModel(model, loss, batches, parameters, matrix, chunk)
    return densities.density(operator, vectors=vectors, steps=steps, seed=seed)


def trace(
    model: nn.Module,
    loss: Loss,
    batches: Any,
    *,
    parameters: Sequence[str] | None = None,
    vectors: int = 30,
    seed: int = 0,
    matrix: str = "Hessian",
    chunk: int | None = None,
) -> Trace:
    """The trace with its standard error, a product a random vector."""
    operator = TorchModel(model, loss, batches, parameters, matrix, chunk)
    return densities.trace(operator, vectors=vectors, seed=seed)


def along(
    model: nn.Module,
    loss: Loss,
    batches: Any,
    direction: Any = "gradient",
    *,
    parameters: Sequence[str] | None = None,
    matrix: str = "Hessian",
    chunk: int | None = None,
) -> Along:
    """Slope and curvature along a direction: flat, a tensor a parameter, or "gradient"."""
    return measure.along(TorchModel(model, loss, batches, parameters, matrix, chunk), direction)


def per_layer(
    model: nn.Module,
    loss: Loss,
    batches: Any,
    *,
    tolerance: float = 1e-2,
    confidence: float = 0.999,
    budget: int | None = None,
    seed: int = 0,
    matrix: str = "Hessian",
    chunk: int | None = None,
) -> dict[str, Probe]:
    """The largest eigenvalue of each diagonal block, by the name of the module that owns it."""
    kept = TorchModel(model, loss, batches, None, matrix, chunk).batches
    found = {}
    for name, module in model.named_modules():
        own = [
            f"{name}.{one}".lstrip(".")
            for one, value in module.named_parameters(recurse=False)
            if value.requires_grad
        ]
        # Parameters that modules share belong to the first.
        own = [one for one in own if one in dict(model.named_parameters())]
        if own:
            operator = TorchModel(model, loss, iter(kept), own, matrix, chunk)
            found[name] = measure.largest(
                operator, tolerance=tolerance, confidence=confidence, budget=budget, seed=seed
            )
    if not found:
        raise SettingError("no module of the model has parameters that require a gradient")
    return found
