"""Three trainings for the monitor, from scikit-learn's digits and a text made here.

All of them are full-batch, so that there is one matrix and one edge. They are in double
precision, in which a very small kick can be followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Training:
    """A model with its data, and its optimiser at a rate."""

    name: str
    model: Any
    loss: Any
    batch: tuple[Any, Any]
    make: Callable[[Any, float], Any]
    rate: float
    steps: int


class _Characters(nn.Module):  # type: ignore[misc, unused-ignore]
    """A transformer of one causal block over characters."""

    def __init__(self, letters: int, length: int, width: int = 16) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.block = nn.TransformerEncoderLayer(
            width, 2, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.out = nn.Linear(width, letters)
        mask = torch.full((length, length), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, x: Any) -> Any:
        places = torch.arange(x.shape[1])
        hidden = self.block(self.letters(x) + self.places(places), src_mask=self.mask)
        return self.out(hidden).transpose(1, 2)


def trainings() -> Iterator[Training]:
    """An MLP by descent, a convolutional network with momentum, a transformer by AdamW."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    x = torch.tensor(images / 16.0 - 0.5, dtype=torch.float64)[:400]
    y = torch.tensor(digits)[:400]
    one_hot = nn.functional.one_hot(y, 10).double()
    torch.manual_seed(0)
    mlp = nn.Sequential(
        nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10)
    )
    yield Training(
        "MLP, digits, descent", mlp.double(), nn.MSELoss(), (x, one_hot),
        lambda m, rate: torch.optim.SGD(m.parameters(), lr=rate), 0.8, 1500,
    )  # fmt: skip
    torch.manual_seed(1)
    convolutional = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3), nn.Tanh(),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    yield Training(
        "convolutional, digits, momentum", convolutional.double(), nn.MSELoss(),
        (x.reshape(-1, 1, 8, 8), one_hot),
        lambda m, rate: torch.optim.SGD(m.parameters(), lr=rate, momentum=0.9), 0.5, 1000,
    )  # fmt: skip
    torch.manual_seed(2)
    text = "".join(f"{a} plus {b} is {a + b}; " for a in range(9) for b in range(9))
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(one) for one in text])
    rows = codes[: len(codes) // 17 * 17].reshape(-1, 17)
    yield Training(
        "transformer, text, AdamW", _Characters(len(letters), 16).double(), nn.CrossEntropyLoss(),
        (rows[:, :-1], rows[:, 1:]),
        lambda m, rate: torch.optim.AdamW(m.parameters(), lr=rate, weight_decay=0.01), 1e-3, 1600,
    )  # fmt: skip
