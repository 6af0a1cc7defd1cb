"""Models of all shapes on which the memory of a measurement is judged.

What a step takes are gradients, as many as weights, and activations: either may be the most of it.
Of each shape there is a small one and a large one; what normalises over a batch in training mode
cannot be cut, recurrent layers have no forward derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

Case = tuple[Any, Any, tuple[Any, Any]]
ENTROPY = nn.CrossEntropyLoss()


def sizes() -> dict[str, Callable[[], Case]]:
    """By name."""
    return {
        "perceptron, 1.6 M weights, 16 samples": partial(_perceptron, 512, 16),
        "perceptron, 1.6 M weights, 512 samples": partial(_perceptron, 512, 512),
        "perceptron, 23 k weights, 2000 samples": partial(_perceptron, 64, 2000),
        "perceptron, 23 k weights, 64 samples": partial(_perceptron, 64, 64),
        "perceptron, batch norm, 1.6 M weights, 16 samples": partial(_perceptron, 512, 16, True),
        "perceptron, batch norm, 1.6 M weights, 512 samples": partial(_perceptron, 512, 512, True),
        "perceptron, batch norm, 23 k weights, 2000 samples": partial(_perceptron, 64, 2000, True),
        "convolutions, 400 images": partial(_convolutions, 400),
        "convolutions, 40 images": partial(_convolutions, 40),
        "convolutions, 4 images": partial(_convolutions, 4),
        "convolutions, batch norm, 400 images": partial(_convolutions, 400, True),
        "convolutions, batch norm, 40 images": partial(_convolutions, 40, True),
        "convolutions, batch norm, 10 images": partial(_convolutions, 10, True),
        "residual, batch norm, 32 images": partial(_residual, 32),
        "transformer, 64 texts": partial(_transformer, 64),
        "transformer, 4 texts": partial(_transformer, 4),
        "transformer, 1 text": partial(_transformer, 1),
        "LSTM, 64 texts": partial(_recurrent, 64),
        "LSTM, 8 texts": partial(_recurrent, 8),
        "one linear layer, 4 M weights, 8 samples": _linear,
    }


def _labels(count: int, classes: int = 10) -> Any:
    return torch.randint(0, classes, (count,))


def _perceptron(width: int, samples: int, norm: bool = False) -> Case:
    torch.manual_seed(0)
    layers: list[Any] = []
    for inputs in (32, *[width] * 3, *[width] * 3):
        middle = [nn.BatchNorm1d(width)] if norm else []
        layers += [nn.Linear(inputs, width), *middle, nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    return model, ENTROPY, (torch.randn(samples, 32), _labels(samples))


def _convolutions(images: int, norm: bool = False) -> Case:
    torch.manual_seed(0)
    layers: list[Any] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        middle = [nn.BatchNorm2d(outputs)] if norm else []
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), *middle, nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))
    return model, ENTROPY, (torch.randn(images, 3, 32, 32), _labels(images))


class _Block(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(y)))


def _residual(images: int) -> Case:
    torch.manual_seed(0)
    blocks = [_Block(32) for _ in range(6)]
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip
    return model, ENTROPY, (torch.randn(images, 3, 32, 32), _labels(images))


class _Texts(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, inner: Any, width: int, letters: int = 100) -> None:
        super().__init__()
        self.letters, self.inner = nn.Embedding(letters, width), inner
        self.out = nn.Linear(width, letters)

    def forward(self, x: Any) -> Any:
        found = self.inner(self.letters(x))
        hidden = found[0] if isinstance(found, tuple) else found
        return self.out(hidden).transpose(1, 2)


def _texts(count: int, length: int = 64) -> tuple[Any, Any]:
    codes = torch.randint(0, 100, (count, length + 1))
    return codes[:, :-1], codes[:, 1:]


def _transformer(texts: int) -> Case:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True)
    inner = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return _Texts(inner, 64), ENTROPY, _texts(texts)


def _recurrent(texts: int) -> Case:
    torch.manual_seed(0)
    return _Texts(nn.LSTM(64, 128, 2, batch_first=True, proj_size=64), 64), ENTROPY, _texts(texts)


def _linear() -> Case:
    torch.manual_seed(0)
    model = nn.Linear(2000, 2000)
    return model, nn.MSELoss(), (torch.randn(8, 2000), torch.randn(8, 2000))
