"""A plain deep linear network is recognised: then the theory answers besides the measurement."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flatmin.core.errors import FlatminError
from flatmin.curvature.sharpness import sharpness
from flatmin.data.regression import Regression
from flatmin.probes.record import LinearTruth
from flatmin.theory.minimal_sharpness import minimal_sharpness


def linear_truth(model: nn.Module, loss: Any, batches: list[Any]) -> LinearTruth | None:
    """For nested `Sequential`s of `Linear` without bias and the mean squared error; else None.

    MSELoss is a mean over samples and outputs, the risk of the theory one over samples: it is the
    number of outputs times as large.
    """
    matrices = _matrices(model)
    mean = isinstance(loss, nn.MSELoss) and loss.reduction == "mean"
    if matrices is None or not (mean or loss is nn.functional.mse_loss):
        return None
    pairs = [one for one in batches if isinstance(one, (tuple, list)) and len(one) == 2]
    if len(pairs) < len(batches) or not all(x.ndim == y.ndim == 2 for x, y in pairs):
        return None
    inputs, targets = (torch.cat(part).double().cpu().numpy() for part in zip(*pairs, strict=True))
    if inputs.shape[1] != matrices[0].shape[1] or targets.shape[1] != len(matrices[-1]):
        return None
    outputs = targets.shape[1]
    data = Regression.from_arrays(inputs, targets[:, 0] if outputs == 1 else targets)
    arrays = [one.detach().double().cpu().numpy() for one in matrices]
    found = float(sharpness(data, arrays, tolerance=1e-12).value)
    try:
        widths = [len(one) for one in arrays[:-1]]
        wide = all(width >= min(outputs, data.d) for width in widths)
        least = minimal_sharpness(data, len(arrays)).exact / outputs if wide else None
    except FlatminError:
        least = None
    return LinearTruth(sharpness=found / outputs, minimal_sharpness=least)


def _matrices(model: nn.Module) -> list[Tensor] | None:
    if isinstance(model, nn.Sequential):
        parts = [_matrices(one) for one in model]
        if any(one is None for one in parts):
            return None
        return [matrix for one in parts for matrix in one or []] or None
    if isinstance(model, nn.Linear):
        trained = model.bias is None and model.weight.requires_grad
        return [model.weight] if trained else None
    return [] if isinstance(model, nn.Identity) else None
