"""A plain deep linear network is recognised, and only that."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import flatmin
import flatmin.torch as probes

MSE = nn.MSELoss()


def network(*widths: int, bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    pairs = pairwise(widths)
    return nn.Sequential(*(nn.Linear(a, b, bias=bias) for a, b in pairs)).double()


def data(outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(40, 5).double(), torch.randn(40, outputs).double()


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_exact_value_agrees_with_the_measured_one(outputs):
    x, y = data(outputs)
    found = probes.sharpness(network(5, 7, 6, outputs), MSE, [(x[:30], y[:30]), (x[30:], y[30:])])
    assert found.low <= found.linear.sharpness <= found.high
    target = y[:, 0] if outputs == 1 else y
    regression = flatmin.Regression.from_arrays(x.numpy(), target.numpy())
    least = flatmin.predict(regression, depth=3).exact / outputs
    assert found.linear.minimal_sharpness == pytest.approx(least)
    assert found.linear.critical_rate == pytest.approx(2 / least)


def test_a_rate_above_the_critical_one_settles_nowhere():
    """Gradient descent by PyTorch itself, from a network near the flattest minimiser."""
    x, y = data(1)
    regression = flatmin.Regression.from_arrays(x.numpy(), y[:, 0].numpy())
    flattest = flatmin.flattest_minimiser(regression, flatmin.Architecture.mlp(inputs=5, depth=3))
    ends = []
    for factor in (0.95, 1.05):
        model = network(5, 5, 5, 1)
        with torch.no_grad():
            for layer, matrix in zip(model, flattest, strict=True):
                layer.weight.copy_(torch.from_numpy(matrix) * 1.001)
        truth = probes.sharpness(model, MSE, (x, y)).linear
        optimizer = torch.optim.SGD(model.parameters(), lr=factor * truth.critical_rate)
        for _ in range(300):
            optimizer.zero_grad()
            loss = MSE(model(x), y)
            loss.backward()
            optimizer.step()
        ends.append(loss.item() - regression.risk_min)
    assert ends[0] < 1e-9
    assert ends[1] > 1e-6


@pytest.mark.parametrize(
    "model",
    [network(5, 4, 1, bias=True), nn.Sequential(network(5, 4), nn.Tanh(), network(4, 1)).double()],
)
def test_others_are_not(model):
    assert probes.sharpness(model, MSE, data(1)).linear is None
    assert probes.sharpness(network(5, 4, 1), nn.L1Loss(), data(1)).linear is None
