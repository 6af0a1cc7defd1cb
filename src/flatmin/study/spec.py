"""The spec of a study: a TOML file, validated, with everything a run depends on.

>>> study = parse_spec(STARTER)
>>> study.name, study.runs, study.method.name
('scales', 36000, 'descent')
>>> parse_spec(study.to_toml()).canonical() == study.canonical()
True
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import PrivateAttr, ValidationError, field_validator, model_validator

from flatmin.core.errors import SettingError
from flatmin.core.files import make_directory, read_text, writing
from flatmin.data.regression import Regression, read_regression
from flatmin.data.samples import Samples, read_samples
from flatmin.dynamics.methods import METHODS, required
from flatmin.lanes.step_control import FLOW_STEPS, RTOL
from flatmin.study import toml
from flatmin.study.fields import Repetitions, Section, Seed, Text, describe
from flatmin.study.grid import Grid
from flatmin.study.sections import ArchitectureSpec, InitialisationSpec, Method, Problem, RecordSpec

S = TypeVar("S", bound=Section)
MAX_RUNS = 10**9
MAX_POINTS = 10**7


class Study(Section):
    """A validated study: from a file, from nested dictionaries like the file's, or from settings.

    A data file that it names is read too, relative to the folder of the file.

    >>> study = Study(
    ...     problem={"paper": "linear"}, architecture={"depth": 4}, grid={"scale": [0.3, 0.5]},
    ...     method={"learning_rate": 0.05, "steps": 500}, repetitions=10,
    ... )
    >>> study.runs
    20
    """

    name: Text = "study"
    seed: Seed = 0
    repetitions: Repetitions | None = None
    datasets: Repetitions = 1
    problem: Problem
    architecture: ArchitectureSpec
    initialisation: InitialisationSpec = InitialisationSpec()
    method: Method = Method()
    grid: Grid = Grid()
    record: RecordSpec = RecordSpec()

    # The content of `problem.file`, carried along so that a worker needs no access to the file.
    _data: Regression | Samples | None = PrivateAttr(None)
    _digest: str | None = PrivateAttr(None)

    def __init__(self, spec: Any = None, /, **settings: Any) -> None:
        source, folder = "the study", Path.cwd()
        if isinstance(spec, str | Path):
            spec = _file(Path(spec))
        if isinstance(spec, _Source):
            spec, source, folder = spec
        try:
            super().__init__(**{**(spec or {}), **settings})
        except ValidationError as error:
            raise SettingError(describe(error, source, Study)) from None
        if self.problem.file is not None:
            self._read(folder / self.problem.file)

    def _read(self, file: Path) -> None:
        """The content of the data file: the rows only if the networks need them."""
        problem = self.problem
        assert problem.target is not None
        read = read_regression if self.linear else read_samples
        features = None if problem.features is None else list(problem.features)
        self._data = read(file, problem.target, features, problem.preparation())
        with file.open("rb") as content:
            self._digest = hashlib.file_digest(content, "sha256").hexdigest()
        resolved = problem.model_copy(update={"file": str(file.resolve())})
        object.__setattr__(self, "problem", resolved)

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        _check_once(self)
        _check_network(self)
        _check_method(self)
        if self.datasets > 1 and self.problem.generator is None:
            raise ValueError(
                f"datasets must be 1 unless the problem has a generator, got {self.datasets}"
            )
        points = self.grid.size() * self.datasets
        if self.runs > MAX_RUNS or points > MAX_POINTS:
            raise ValueError(
                f"a study has at most {MAX_RUNS:.0e} runs and {MAX_POINTS:.0e} points of the grid "
                f"on all data sets, got {self.runs:.3g} and {points:.3g}"
            )
        return self

    @field_validator("grid", mode="before")
    @classmethod
    def _table(cls, value: Any) -> Any:
        if not isinstance(value, dict | Grid):
            raise ValueError(f"must be a table of axes, got {value!r}")
        return value

    @property
    def linear(self) -> bool:
        """Whether the networks are linear, so that they need no rows."""
        return self.architecture.activation == "linear" and not self.architecture.biases

    @property
    def runs(self) -> int:
        """The number of runs, without making them."""
        each = self.repetitions or 1
        total = self.datasets
        for group in self.grid.groups():
            column = next(iter(group.values()))
            if "repetitions" in group:
                total, each = total * sum(map(int, group["repetitions"])), 1
            else:
                total *= len(column)
        return total * each

    @property
    def data(self) -> Regression | Samples:
        """The data of `problem.file`."""
        assert self._data is not None
        return self._data

    def canonical(self) -> str:
        """All settings, defaults included, as JSON in a fixed order; two equal texts are one study.

        A data file is named by the hash of its content, wherever it lies.
        """
        content = self.plain()
        if self.problem.file is not None:
            content["problem"]["file"] = f"sha256:{self._digest}"
        return json.dumps(content, indent=2, sort_keys=True, allow_nan=False)

    def to_toml(self) -> str:
        """The same study as a TOML file, defaults included."""
        return toml.write(self.plain())

    def plain(self) -> dict[str, Any]:
        """Nested dictionaries of plain values, without what is not set."""
        varied, method, network = self.grid.names(), self.method, self.architecture
        if not method.continuous:
            usual: dict[str, Any] = {"learning_rate_unit": "absolute"}
        else:
            usual = {"rtol": RTOL} | ({} if "steps" in varied else {"steps": FLOW_STEPS})
        output = {"output": "random"} if network.kind == "residual" else {}
        filled = {"method": _filled(method, usual), "architecture": _filled(network, output)}
        whole = self.model_copy(update=filled)
        if "repetitions" not in varied:
            whole = _filled(whole, {"repetitions": 1})
        content = whole.model_dump(mode="json", exclude_none=True)
        if not self.record.quantities:
            del content["record"]["quantities"]
        if not content["grid"]:
            del content["grid"]
        return content


def _filled(section: S, usual: dict[str, Any]) -> S:
    """A section with what is usual where nothing is set."""
    given = {name: value for name, value in usual.items() if getattr(section, name) is None}
    return section.model_copy(update=given)


def _check_once(study: Study) -> None:
    """Every setting is fixed in its section or varied in the grid: one of the two."""
    descent = not study.method.continuous
    places = {
        "depth": ("architecture.depth", study.architecture.depth, True),
        "width": ("architecture.width", study.architecture.width, False),
        "scale": ("initialisation.scale", study.initialisation.scale, True),
        "learning_rate": ("method.learning_rate", study.method.learning_rate, descent),
        "steps": ("method.steps", study.method.steps, descent),
        "repetitions": ("repetitions", study.repetitions, False),
    }
    varied = study.grid.names()
    for name, (place, value, needed) in places.items():
        if value is not None and name in varied:
            raise ValueError(f"{place} is set, and the grid varies it too: give one of the two")
        if needed and value is None and name not in varied:
            raise ValueError(f"{place} is missing: set it there or vary {name} in the grid")


def _check_network(study: Study) -> None:
    network, init = study.architecture, study.initialisation.name
    if network.kind == "residual":
        if network.width is not None or "width" in study.grid.names():
            raise ValueError("architecture.width must be left out for residual networks")
        if network.activation != "linear":
            raise ValueError(
                "architecture.activation must be 'linear' for residual networks, "
                f"got {network.activation!r}"
            )
        if network.biases:
            raise ValueError("architecture.biases must be left out for residual networks")
    elif network.biases and study.method.learning_rate_unit == "critical":
        raise ValueError(
            "method.learning_rate_unit must be 'absolute' for networks with biases: the theory "
            "of S_min is for networks without"
        )
    elif network.output is not None:
        raise ValueError("architecture.output is for kind = 'residual' only")
    elif init == "residual":
        raise ValueError("initialisation.name 'residual' needs architecture.kind = 'residual'")
    if not study.linear and init in ("flattest", "minimiser"):
        raise ValueError(f"initialisation.name {init!r} needs linear networks")


def _check_method(study: Study) -> None:
    method = study.method
    if method.continuous:
        if not study.linear:
            raise ValueError("method.name 'flow' is for linear networks")
        if (
            "learning_rate" in study.grid.names()
            or method.learning_rate is not None
            or method.learning_rate_unit is not None
        ):
            raise ValueError("method.name 'flow' has no learning rate: leave it out")
    given = method.own()
    for key in required(method.name):
        if key not in given:
            raise ValueError(f"method.{key} is missing: method.name {method.name!r} needs it")
    for key in given:
        if key not in METHODS[method.name].own:
            known = " and ".join(repr(name) for name, kind in METHODS.items() if key in kind.own)
            raise ValueError(f"method.{key} is for method.name {known} only")


def step_limit(study: Study, steps: float | None) -> int:
    """The largest number of steps of a run."""
    chosen = steps if steps is not None else study.method.steps
    return int(chosen) if chosen is not None else FLOW_STEPS


def parse_spec(text: str, source: str = "the spec", folder: Path | None = None) -> Study:
    """The study in a text. `source` names it in errors; data files are relative to `folder`."""
    return Study(_parsed(text, source, folder or Path.cwd()))


class _Source(NamedTuple):
    """What a file or a text says, what to call it, and where its data files are."""

    content: dict[str, Any]
    name: str
    folder: Path


def _file(path: Path) -> _Source:
    return _parsed(read_text(path), str(path), path.parent)


def _parsed(text: str, source: str, folder: Path) -> _Source:
    try:
        return _Source(tomllib.loads(text), source, folder)
    except (ValueError, RecursionError) as error:  # also of numbers too long, and tables too deep
        raise SettingError(f"{source} is not valid TOML: {error}") from None


_OTHERS = ", ".join(f'"{name}"' for name in list(METHODS)[1:])
_STARTER = files("flatmin.study").joinpath("starter.toml").read_text("utf-8")
STARTER = _STARTER.replace("{others}", _OTHERS)
"""A commented spec to start from."""


def write_starter(file: str | Path) -> Path:
    """The spec to start from as a new file."""
    path = Path(file)
    if path.exists():
        raise SettingError(f"{str(file)!r} is there already: choose another name or remove it")
    make_directory(path.parent)
    with writing(path) as temporary:
        temporary.write_text(STARTER, encoding="utf-8")
    return path
