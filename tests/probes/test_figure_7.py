"""Figure 7 of the paper once more, through PyTorch: GELU networks, trained and measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import flatmin
import flatmin.torch as probes
from flatmin.data.sets import paper_samples

SAMPLES = paper_samples("nonlinear")
NETWORK = flatmin.Architecture.mlp(SAMPLES.d, depth=10, activation="gelu-tanh")
BATCH = torch.from_numpy(SAMPLES.X.copy()), torch.from_numpy(SAMPLES.y.copy())[:, None]


def in_torch(matrices) -> nn.Module:
    """The same network as PyTorch modules."""
    layers: list[nn.Module] = []
    for matrix in matrices:
        linear = nn.Linear(*matrix.shape[::-1], bias=False, dtype=torch.float64)
        linear.weight.data = torch.from_numpy(np.array(matrix))
        layers += [linear, nn.GELU(approximate="tanh")]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize(("rate", "steps"), [(0.02, 40_000), (0.07, 16_000)])
def test_sharpness_after_training_agrees_with_the_engine(rate, steps):
    scales = np.linspace(0.428, 0.7, 8)
    flat = [
        flatmin.initialise(NETWORK, "gaussian", s, seed=0, networks=1).flat()[0] for s in scales
    ]
    start = flatmin.Ensemble.from_flat(NETWORK, flat)
    end = flatmin.descend(SAMPLES, start, learning_rate=rate, steps=steps).ensemble
    truth = flatmin.sharpness(SAMPLES, end, tolerance=1e-9).value
    finite = np.isfinite(truth)
    assert finite.sum() >= 6  # a few diverge at the largest scales
    for matrices, expected in zip(end, truth, strict=True):
        if np.isfinite(expected):
            found = probes.sharpness(in_torch(matrices), nn.MSELoss(), BATCH, tolerance=1e-7)
            assert found.value == pytest.approx(expected, rel=1e-6)
            assert found.low <= expected * (1 + 1e-9)
            assert found.linear is None


def test_pytorch_trains_to_the_same_sharpness():
    start = flatmin.initialise(NETWORK, "gaussian", 0.5, seed=0, networks=1)
    model = in_torch(start[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(2000):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(BATCH[0]), BATCH[1]).backward()
        optimizer.step()
    end = flatmin.descend(SAMPLES, start, learning_rate=0.02, steps=2000).ensemble
    found = probes.sharpness(model, nn.MSELoss(), BATCH, tolerance=1e-7)
    truth = flatmin.sharpness(SAMPLES, end, tolerance=1e-9).value
    assert found.value == pytest.approx(float(np.ravel(truth)[0]), rel=1e-6)
