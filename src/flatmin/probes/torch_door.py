"""What `flatmin.torch` offers.

Every function takes a model, a loss and batches, and leaves the model's mode, parameters,
gradients, buffers and random state as they were. Matrices are those of the mean loss in the mode
that the model is in.

- A batch that is a pair has the loss loss(model(inputs), targets); any other batch has
  loss(model, batch). The loss is a mean over samples.
- `batches` is a batch, a list of batches or a loader, which is gone through once.
- `parameters` are names of `model.named_parameters()`; without them all that require a gradient.
- `matrix` is "Hessian" or "Gauss-Newton".
- `chunk` is the number of samples that are differentiated at a time; without it as many as take
  the memory of a training step.
- `how` is the way to products, if one alone will do: "finite differences" take the memory of a
  training step whatever the model is, and leave the interval wider. Without it they are taken where
  large batches cannot be cut, if they reach the tolerance.
- `stop` are `tolerance`, `confidence`, `budget` and `seed` of `sharpness`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Unpack

from torch import nn

from flatmin.probes import density as densities
from flatmin.probes import measure
from flatmin.probes.density import Density
from flatmin.probes.measure import Stop
from flatmin.probes.record import Along, Probe, Spectrum, Trace
from flatmin.probes.torch_call import Loss, plainly
from flatmin.probes.torch_linear import linear_truth
from flatmin.probes.torch_model import TorchModel

Names = Iterable[str] | None


@plainly()
def sharpness(
    model: nn.Module,
    loss: Loss,
    batches: Any,
    *,
    parameters: Names = None,
    tolerance: float = 1e-2,
    confidence: float = 0.999,
    budget: int | None = None,
    start: Any = None,
    seed: int = 0,
    matrix: str = "Hessian",
    chunk: int | None = None,
    how: str | None = None,
) -> Probe:
    """The largest signed eigenvalue as an interval, in at most `budget` products.

    `start` is an earlier record, or its vector: it is mixed with a random one.
    """
    operator = TorchModel(model, loss, batches, parameters, matrix, chunk, how)
    found = measure.largest(
        operator, tolerance=tolerance, confidence=confidence, budget=budget, start=start, seed=seed
    )
    if parameters is None and matrix == "Hessian":
        return replace(found, linear=linear_truth(model, loss, operator.batches))
    return found


@plainly()
def spectrum(
    model: nn.Module, loss: Loss, batches: Any, k: int = 5, *,
    parameters: Names = None, matrix: str = "Hessian", chunk: int | None = None,
    how: str | None = None, **stop: Unpack[Stop],
) -> Spectrum:  # fmt: skip
    """The top k and the bottom k eigenvalues with their residuals."""
    return measure.ends(TorchModel(model, loss, batches, parameters, matrix, chunk, how), k, **stop)


@plainly()
def density(
    model: nn.Module, loss: Loss, batches: Any, *,
    parameters: Names = None, matrix: str = "Hessian", chunk: int | None = None,
    how: str | None = None, vectors: int = 8, steps: int = 50, seed: int = 0,
) -> Density:  # fmt: skip
    """The density of eigenvalues, with its error; it has a `plot`."""
    operator = TorchModel(model, loss, batches, parameters, matrix, chunk, how)
    return densities.density(operator, vectors=vectors, steps=steps, seed=seed)


@plainly()
def trace(
    model: nn.Module, loss: Loss, batches: Any, *,
    parameters: Names = None, matrix: str = "Hessian", chunk: int | None = None,
    how: str | None = None, vectors: int = 30, seed: int = 0,
) -> Trace:  # fmt: skip
    """The trace with its standard error, a product a random vector."""
    operator = TorchModel(model, loss, batches, parameters, matrix, chunk, how)
    return densities.trace(operator, vectors=vectors, seed=seed)


@plainly()
def along(
    model: nn.Module, loss: Loss, batches: Any, direction: Any = "gradient", *,
    parameters: Names = None, matrix: str = "Hessian", chunk: int | None = None,
    how: str | None = None,
) -> Along:  # fmt: skip
    """Slope and curvature along a direction: flat, a tensor a parameter, or "gradient"."""
    return measure.along(
        TorchModel(model, loss, batches, parameters, matrix, chunk, how), direction
    )


@plainly()
def per_layer(
    model: nn.Module, loss: Loss, batches: Any, *,
    matrix: str = "Hessian", chunk: int | None = None, how: str | None = None,
    **stop: Unpack[Stop],
) -> dict[str, Probe]:  # fmt: skip
    """The largest eigenvalue of each diagonal block, by the name of the module that owns it."""
    kept = TorchModel(model, loss, batches, None, matrix, chunk, how).batches
    owned: dict[str, list[str]] = {}
    for name, one in model.named_parameters():  # what modules share belongs to the first
        if one.requires_grad:
            owned.setdefault(name.rpartition(".")[0], []).append(name)
    return {
        owner: measure.largest(
            TorchModel(model, loss, iter(kept), names, matrix, chunk, how), **stop
        )
        for owner, names in owned.items()
    }
