"""Strict tests: deterministic property tests, 64-bit automatic differentiation."""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

settings.register_profile(
    "flatmin",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("flatmin")

# What takes longest begins first, so that processes side by side end together.
LONG = ("test_reproduce", "test_cli_check", "test_study_reliability", "test_study_cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first; the order is otherwise kept."""
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
