"""Numbered cases from a Hypothesis strategy: case N of a seed is always the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

CHUNK = 100  # Hypothesis begins with the simplest case, then draws: one of so many is dull


def numbered(
    strategy: SearchStrategy[Any], cases: int, seed: int = 0, first: int = 0
) -> Iterator[tuple[int, Any]]:
    """Cases first .. first + cases - 1, with their numbers."""
    for chunk in range(first // CHUNK, -(-(first + cases) // CHUNK)):
        for i, case in enumerate(_chunk(strategy, seed, chunk)):
            if first <= chunk * CHUNK + i < first + cases:
                yield chunk * CHUNK + i, case


def _chunk(strategy: SearchStrategy[Any], seed: int, chunk: int) -> list[Any]:
    drawn: list[Any] = []

    @hypothesis.seed(f"{seed}/{chunk}")
    @settings(
        max_examples=CHUNK,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def draw(case: Any) -> None:
        drawn.append(case)

    draw()
    return drawn[:CHUNK]
