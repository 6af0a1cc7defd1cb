"""What the page may ask for: a study of one setting, with limits, and its address.

The settings of a run are those of a study without a grid, so the page, the command line and a
study's file are checked by the same models and complain in the same words. Two things are added:
several outputs, and changes of the rate on the way.

An address is the same settings as `key=value` pairs after the page's `#`:

>>> text = address({"seed": 0, "method": {"name": "descent", "learning_rate": 0.07}})
>>> text
'seed=0&method.name=descent&method.learning_rate=0.07'
>>> from_address(text)
{'seed': 0, 'method': {'name': 'descent', 'learning_rate': 0.07}}
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, unquote

from pydantic import BaseModel, Field, ValidationError, model_validator

from flatmin.core.errors import SettingError
from flatmin.dynamics import methods
from flatmin.dynamics.central_flow import CentralFlow
from flatmin.study.fields import Count, Positive, Text, describe
from flatmin.study.sections import Problem
from flatmin.study.spec import Study

SOURCE = "the page"
LARGEST = {
    "problem.n": 100_000,
    "problem.d": 200,
    "problem.targets": 50,
    "architecture.depth": 200,
    "architecture.width": 256,
    "method.steps": 100_000,
    "repetitions": 200,
}
"""How large the numbers of a setting may be: what a page can show while somebody waits."""
METHODS = tuple(name for name in methods.METHODS if name != CentralFlow.name)
"""Those whose steps are seen as they are taken."""
MOST_WEIGHTS = 1_000_000
"""Of all networks of a run."""
MOST_TOGETHER = 4_000_000
"""Of all networks that are in memory for a picture beside it."""
MOST_CHANGES = 20
MOST_WORK = 2e12
"""Flops of a run: some minutes on one core."""


class LabProblem(Problem):
    """The data; unlike a study's, with several targets."""

    targets: Count | None = None
    more_targets: tuple[Text, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _one_source(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        own = {key: data[key] for key in ("targets", "more_targets") if key in data}
        rest = {key: value for key, value in data.items() if key not in own}
        found = Problem._one_source(rest)  # type: ignore[operator]
        several = own.get("targets") not in (None, 1)
        if several and data.get("generator") != "gaussian":
            raise ValueError("must not have targets without generator = 'gaussian'")
        if own.get("more_targets") and "file" not in data:
            raise ValueError("must not have more_targets without a file")
        return found | own

    @property
    def target_names(self) -> list[str]:
        """The columns of the file to predict."""
        return [name for name in (self.target, *self.more_targets) if name is not None]

    @property
    def outputs(self) -> int:
        """How many targets there are."""
        return len(self.target_names) if self.file is not None else (self.targets or 1)


class Setting(Study):
    """One run, or an ensemble of `repetitions` runs, with its changes of the rate."""

    problem: LabProblem
    changes: tuple[tuple[Count, Positive], ...] = Field(default=(), max_length=MOST_CHANGES)
    """(step, learning rate from there on), in the order of steps."""

    def __init__(self, content: dict[str, Any], /) -> None:
        # Unlike a study it is no file, and reads none.
        try:
            BaseModel.__init__(self, **content)
        except ValidationError as error:
            raise SettingError(describe(error, SOURCE, Setting)) from None

    @model_validator(mode="after")
    def _one_run(self) -> Setting:
        if self.grid.names():
            raise ValueError("the lab runs one setting at a time: leave the grid out")
        if self.datasets != 1:
            raise ValueError(f"datasets must be 1 in the lab, got {self.datasets}")
        for place, largest in LARGEST.items():
            value: Any = self
            for name in place.split("."):
                value = getattr(value, name)
            if value is not None and value > largest:
                raise ValueError(f"{place} must be at most {largest} in the lab, got {value}")
        if self.method.learning_rate_unit == "critical":
            raise ValueError("method.learning_rate_unit must be 'absolute' in the lab")
        if self.method.name not in METHODS:
            raise ValueError(
                f"method.name must be one of {', '.join(METHODS)} in the lab, "
                f"got {self.method.name!r}"
            )
        self._check_changes()
        if self.problem.outputs > 1 and self.architecture.kind == "residual":
            raise ValueError("architecture.kind 'residual' is for one output")
        if self.problem.outputs > 1 and not self.linear:
            raise ValueError("a network of several outputs must be linear")
        return self

    def _check_changes(self) -> None:
        steps = [step for step, _ in self.changes]
        if steps != sorted(set(steps)):
            raise ValueError("changes must be in the order of steps, each step once")
        if self.changes and self.method.continuous:
            raise ValueError("changes must be left out: gradient flow has no learning rate")
        if any(step % self.every for step in steps):
            raise ValueError(f"changes must be at entries, every {self.every} steps, got {steps}")
        if steps and steps[-1] >= self.steps:
            raise ValueError(f"changes must come before step {self.steps}, got {steps[-1]}")

    def plain(self) -> dict[str, Any]:
        """Nested dictionaries of plain values, without what is not set."""
        content = super().plain()
        if self.architecture.output is None:  # the lab's default is not a study's
            content["architecture"].pop("output", None)
        if not self.changes:
            content.pop("changes", None)
        return content

    @property
    def networks(self) -> int:
        """How many networks are run."""
        return self.repetitions or 1

    @property
    def steps(self) -> int:
        """The largest number of steps."""
        return self.method.steps or 2000

    @property
    def every(self) -> int:
        """Steps between entries: every step of runs up to 1000."""
        return -(-self.steps // 1000)


def setting_of(content: Any) -> Setting:
    """The setting in plain values, or a SettingError."""
    if not isinstance(content, dict):
        raise SettingError(f"{SOURCE}: settings must be a table of keys, got {content!r}"[:200])
    return Setting(content)


def _pairs(content: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for key, value in content.items():
        if isinstance(value, dict):
            found += _pairs(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, value))
    return found


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _reads_as_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_constant)
    except (ValueError, RecursionError):
        return False
    return True


def address(content: dict[str, Any]) -> str:
    """Nested plain values as `key=value` pairs; what is not set is left out."""
    words = []
    for key, value in _pairs(content):
        if value is None:
            continue
        bare = isinstance(value, str) and not _reads_as_json(value)
        text = value if bare else json.dumps(value, separators=(",", ":"))
        words.append(f"{key}={quote(text, safe=',:[]')}")
    return "&".join(words)


def from_address(text: str) -> dict[str, Any]:
    """The nested plain values of an address (what follows the page's `#`)."""
    content: dict[str, Any] = {}
    for word in text.lstrip("#").split("&"):
        key, equals, value = word.partition("=")
        if not key or not equals:
            continue
        place: Any = content
        *folders, last = key.split(".")
        for name in folders:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise SettingError(f"address: {key} does not fit what is before it")
        plain = unquote(value)
        place[last] = json.loads(plain) if _reads_as_json(plain) else plain
    return content
