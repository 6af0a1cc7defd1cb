"""Numbered cases from a Hypothesis strategy: case N of a seed is always the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.strategies import SearchStrategy


class Fair(HypothesisProvider):
    """Hypothesis' draws, without its search: of another provider than its own it does not choose
    the next example by those before it, which made the second one nearly always of one kind."""


FAIR = "flatmin-fair"
AVAILABLE_PROVIDERS[FAIR] = f"{Fair.__module__}.{Fair.__name__}"


def numbered(
    strategy: SearchStrategy[Any], cases: int, seed: int = 0, first: int = 0
) -> Iterator[tuple[int, Any]]:
    """Cases first .. first + cases - 1, with their numbers."""
    for number in range(first, first + cases):
        yield number, _drawn(strategy, f"{seed}/{number}")


def _drawn(strategy: SearchStrategy[Any], seed: str) -> Any:
    """Of two examples the second: the first is always the simplest."""
    drawn: list[Any] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=2,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        backend=FAIR,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def draw(case: Any) -> None:
        drawn.append(case)

    draw()
    return drawn[-1]
