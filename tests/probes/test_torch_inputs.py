"""Bad input gets one sentence that names the thing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import flatmin.torch as probes
from flatmin.core.errors import DataError, SettingError

LOSS = nn.CrossEntropyLoss()


def plain():
    torch.manual_seed(0)
    return nn.Linear(5, 3), (torch.randn(20, 5), torch.randint(0, 3, (20,)))


def refused(error, words, model, loss, batches, **settings):
    with pytest.raises(error, match=words) as caught:
        probes.sharpness(model, loss, batches, **settings)
    assert "\n" not in str(caught.value)


def test_losses():
    model, batch = plain()
    refused(
        SettingError,
        r"loss must return one number, got a tensor of shape \(20,\)",
        model,
        nn.CrossEntropyLoss(reduction="none"),
        batch,
    )
    refused(SettingError, "loss must return one number, got 3.0", model, lambda o, t: 3.0, batch)
    refused(SettingError, "got the class CrossEntropyLoss", model, nn.CrossEntropyLoss, batch)
    refused(SettingError, "loss must be a function .* got 'mse'", model, "mse", batch)
    cut = lambda o, t: LOSS(o.detach(), t)  # noqa: E731
    refused(SettingError, "the loss does not depend on the parameters", model, cut, batch)
    kept = list(model.parameters())
    outside = lambda o, t: LOSS(o, t) + sum((one**2).sum() for one in kept)  # noqa: E731
    refused(SettingError, "the loss holds on to parameter 'weight' itself", model, outside, batch)
    refused(
        DataError, "loss of the first batch is not finite", model, lambda o, t: o.mean() / 0, batch
    )


def test_models_and_parameters():
    model, batch = plain()
    refused(SettingError, "ReLU has no parameters", nn.ReLU(), LOSS, batch)
    refused(SettingError, "no parameter 'wieght'", model, LOSS, batch, parameters=["wieght"])
    refused(
        SettingError,
        "list of names, got the string 'weight'",
        model,
        LOSS,
        batch,
        parameters="weight",
    )
    refused(SettingError, "list of names is empty", model, LOSS, batch, parameters=[])
    refused(SettingError, "got a Parameter", model, LOSS, batch, parameters=[model.weight])
    refused(SettingError, "model must be a plain nn.Module, got function", plain, LOSS, batch)
    meta = nn.Linear(5, 3, device="meta")
    refused(SettingError, "'weight' has no values yet: .* device meta", meta, LOSS, batch)
    refused(SettingError, "'weight' has no values yet", nn.LazyLinear(3), LOSS, batch)
    with torch.inference_mode():
        made = nn.Linear(5, 3)
    refused(SettingError, "'weight' was made in torch.inference_mode", made, LOSS, batch)
    frozen = nn.Linear(5, 3).requires_grad_(False)
    refused(SettingError, "requires_grad is False", frozen, LOSS, batch)
    whole = nn.Module()
    whole.w = nn.Parameter(torch.arange(3), requires_grad=False)
    refused(SettingError, "parameter 'w' is of type torch.int64", whole, LOSS, batch)
    refused(
        SettingError,
        "parameter 'weight' is of type torch.bfloat16",
        nn.Linear(5, 3).bfloat16(),
        LOSS,
        batch,
    )
    with torch.no_grad():
        model.weight[0, 0] = torch.inf
    refused(DataError, "parameter 'weight' holds values that are not finite", model, LOSS, batch)


def test_batches():
    model, (x, y) = plain()
    bad = x.clone()
    bad[3, 1] = torch.nan
    refused(
        DataError, "batch 2 of 2 holds values that are not finite", model, LOSS, [(x, y), (bad, y)]
    )
    refused(DataError, "batch 2 of 2, a tuple, holds no", model, LOSS, [(x, y), (x[:0], y[:0])])
    refused(DataError, "batch 1 of 1, a tuple, holds no", model, LOSS, [(x.numpy(), y.numpy())])
    refused(DataError, "no batches", model, LOSS, [])
    refused(DataError, "batch 1 of 1 has no values", model, LOSS, (x.to("meta"), y))
    refused(SettingError, "batches must be .* got int", model, LOSS, 3)


def test_outputs_and_batches_that_are_no_pairs():
    model, (x, y) = plain()

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return {"logits": self.inner(x)}

    loss = lambda out, target: LOSS(out["logits"], target)  # noqa: E731
    found = probes.sharpness(Named(), loss, (x, y)).value
    assert found == pytest.approx(probes.sharpness(model, LOSS, (x, y)).value)
    words = "'Gauss-Newton' needs an output that is a tensor, got a dict"
    refused(SettingError, words, Named(), loss, (x, y), matrix="Gauss-Newton")
    words = (
        r"a batch that is no pair, here a tuple, has the loss loss\(model, batch\), which failed"
    )
    refused(SettingError, words, model, LOSS, [(x, y, y)])
    with pytest.raises(SettingError, match=r"model must be a plain nn\.Module, got 'x'"):
        probes.per_layer("x", LOSS, (x, y))


def test_settings():
    model, batch = plain()
    refused(
        SettingError,
        "budget must be a whole number of at least 1, got 0",
        model,
        LOSS,
        batch,
        budget=0,
    )
    refused(SettingError, "tolerance must be a positive", model, LOSS, batch, tolerance=-1)
    refused(
        SettingError, "confidence must lie between 0 and 1, got 1", model, LOSS, batch, confidence=1
    )
    refused(
        SettingError,
        "matrix must be one of Hessian, Gauss-Newton",
        model,
        LOSS,
        batch,
        matrix="hessian",
    )
    refused(SettingError, "must have 18 entries, got 4", model, LOSS, batch, start=torch.ones(4))
    refused(SettingError, "confidence must lie", model, LOSS, batch, confidence="high")
    refused(SettingError, "a direction must be a record, .* got 'x'", model, LOSS, batch, start="x")
    named = {"weight": torch.ones(3, 5)}
    refused(SettingError, "must have those of all parameters", model, LOSS, batch, start=named)
    whole = lambda o, t: LOSS(o, t) ** 2  # noqa: E731
    refused(SettingError, "neither the mean nor the sum", model, whole, batch, chunk=7)
    norm = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    refused(SettingError, "normalise over a batch", norm, LOSS, batch, chunk=7)


class Own(nn.Module):
    """Draws random numbers that no seed controls."""

    def __init__(self):
        super().__init__()
        self.layer, self.source = nn.Linear(5, 3), torch.Generator()

    def forward(self, x):
        return self.layer(x + torch.randn(x.shape, generator=self.source))


def test_a_model_that_changes_from_product_to_product():
    refused(DataError, "random numbers of its own", Own(), LOSS, plain()[1], tolerance=1e-6)
