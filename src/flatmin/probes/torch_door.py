"""What `flatmin.torch` offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from flatmin.probes.measure import largest
from flatmin.probes.record import Probe
from flatmin.probes.torch_model import Loss, TorchModel


def sharpness(
    model: nn.Module,
    loss: Loss,
    batches: Any,
    *,
    parameters: Sequence[str] | None = None,
    tolerance: float = 1e-2,
    confidence: float = 0.999,
    budget: int | None = None,
    start: Tensor | None = None,
    seed: int = 0,
    matrix: str = "Hessian",
) -> Probe:
    """The largest signed eigenvalue of the loss's Hessian, as an interval.

    A batch is a pair, for which the loss is loss(model(inputs), targets), or anything else, for
    which it is loss(model, batch). `batches` is a batch, a list of them, or a loader.
    """
    operator = TorchModel(model, loss, batches, parameters, matrix)
    return largest(
        operator, matrix=matrix, tolerance=tolerance, confidence=confidence, budget=budget,
        start=start, seed=seed,
    )  # fmt: skip
