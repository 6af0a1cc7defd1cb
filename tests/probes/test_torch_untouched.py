"""The model is left as it was, also after an exception in the middle."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flatmin.torch as probes
from flatmin.core.errors import DataError
from flatmin.probes.torch_products import WAYS

LOSS = nn.CrossEntropyLoss()
CALLS = (
    probes.sharpness,
    probes.spectrum,
    partial(probes.density, vectors=2, steps=5),
    probes.trace,
    probes.along,
    probes.per_layer,
)


class Model(nn.Module):
    """Normalisation, dropout, and a forward that fails at a chosen call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3)
        )
        self.left = 10**9

    def forward(self, x):
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("in the middle")
        return self.layers(x)


def state(model):
    """Everything that could change, as values that compare."""
    parameters = [
        (n, id(p), p.tolist(), None if p.grad is None else p.grad.tolist())
        for n, p in model.named_parameters()
    ]
    buffers = [(n, id(b), b.tolist()) for n, b in model.named_buffers()]
    modes = [one.training for one in model.modules()]
    return parameters, buffers, modes, torch.get_rng_state().tolist(), torch.is_grad_enabled()


def prepared(training):
    torch.manual_seed(0)
    model = Model().train(training)
    model.layers[2].eval()  # a mode of its own
    x, y = torch.randn(20, 5), torch.randint(0, 3, (20,))
    LOSS(model(x), y).backward()
    return model, [(x[:12], y[:12]), (x[12:], y[12:])]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_nothing_changes(call, training):
    model, batches = prepared(training)
    before = state(model)
    call(model, LOSS, batches)
    assert state(model) == before


@pytest.mark.parametrize("after", [0, 1, 2, 5, 9])
def test_nothing_changes_after_an_exception(after):
    model, batches = prepared(True)
    before = state(model)
    model.left = after
    with pytest.raises(ZeroDivisionError):
        probes.sharpness(model, LOSS, batches)
    assert state(model) == before


def test_dropout_is_one_matrix():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(20, 5), torch.randint(0, 3, (20,))
    assert probes.sharpness(model, LOSS, [(x, y)] * 3).narrow


def test_a_loader_that_shuffles_is_read_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    data = TensorDataset(torch.randn(50, 5), torch.randint(0, 3, (50,)))
    before = state(model)
    found = probes.sharpness(model, LOSS, DataLoader(data, 16, shuffle=True, drop_last=True))
    assert state(model) == before  # loaders draw
    assert found.narrow
    assert found.data == (
        "48 samples in 3 batches, of one pass of a loader that shuffles and leaves out a rest"
    )


@pytest.mark.parametrize("frozen", [True, False])
def test_a_model_that_writes_into_its_parameters_has_copies(frozen):
    """An embedding with a largest norm scales rows of its weight in every pass."""
    torch.manual_seed(0)
    letters = nn.Embedding(10, 5, max_norm=0.5).requires_grad_(not frozen)
    model = nn.Sequential(letters, nn.Flatten(), nn.Linear(10, 3))
    x, y = torch.randint(0, 10, (20, 2)), torch.randint(0, 3, (20,))
    before = state(model)
    for way in WAYS:
        with suppress(DataError):  # differences see the scaling, which the gradient leaves out
            probes.sharpness(model, LOSS, (x, y), how=way)
        assert state(model) == before
