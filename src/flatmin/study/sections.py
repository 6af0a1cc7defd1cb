"""The tables of a study's file, each with its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, StrictBool, create_model, field_validator, model_validator

from flatmin.core.checks import check_choice
from flatmin.data.preparation import MISSING, Preparation
from flatmin.data.sets import SETS
from flatmin.dynamics.endings import LEARNED_AT
from flatmin.dynamics.methods import METHODS, OWN, method_of
from flatmin.dynamics.methods import Method as Dynamics
from flatmin.dynamics.recording import RENAMED, recordable
from flatmin.network.activations import ACTIVATIONS
from flatmin.network.initialisation import INITIALISATIONS
from flatmin.study.fields import (
    Count,
    Depth,
    NonNegative,
    Positive,
    Section,
    Seed,
    Share,
    Steps,
    Text,
    number,
    one_of,
)

GENERATORS = ("gaussian", "spectrum", "whitened")
OUTPUTS = ("random", "paper", "paper-by-depth")
PREPARING = ("drop", "one_hot", "missing", "intercept", "standardise")
_GENERATOR_KEYS: dict[str, dict[str, Any]] = {
    "gaussian": {"n": 50, "d": 5, "noise": 1.0},
    "spectrum": {"n": 50, "d": 5, "noise": 0.0, "condition_number": 10.0, "alignment": "spread"},
    "whitened": {"n": 50, "d": 5, "noise": 1.0},
}


class Problem(Section):
    """The data: one of a file, a generator, or the paper's own."""

    file: Text | None = None
    target: Text | None = None
    features: tuple[Text, ...] | None = None
    drop: tuple[Text, ...] | None = None
    one_hot: tuple[Text, ...] | None = None
    missing: Annotated[str, one_of(MISSING)] | None = None
    intercept: StrictBool | None = None
    standardise: StrictBool | None = None
    generator: Annotated[str, one_of(GENERATORS)] | None = None
    n: Count | None = None
    d: Count | None = None
    noise: NonNegative | None = None
    condition_number: Positive | None = None
    alignment: Annotated[str, one_of(("spread", "weak", "strong"))] | None = None
    seed: Seed | None = None
    paper: Annotated[str, one_of(SETS)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_source(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = {key: value for key, value in data.items() if value is not None}
        sources = [name for name in ("file", "generator", "paper") if name in data]
        if len(sources) != 1:
            given = " and ".join(sources) or "none of them"
            raise ValueError(f"must have exactly one of file, generator and paper, got {given}")
        source = sources[0]
        if source == "generator":
            extra = _GENERATOR_KEYS.get(str(data["generator"]), {})
            allowed = {"generator", "seed", *extra}
        else:
            extra = {}
            allowed = {"file", "target", "features", *PREPARING} if source == "file" else {"paper"}
        if source == "file" and "target" not in data:
            raise ValueError("must name the target, the column of the file to predict")
        misplaced = [key for key in data if key in cls.model_fields and key not in allowed]
        if misplaced and (source != "generator" or extra):
            owner = f"{source} = {data[source]!r}" if source != "file" else "a file"
            raise ValueError(f"must not have {misplaced[0]} with {owner}")
        # What changes nothing is left out, so that it does not change which study this is.
        idle = [key for key in PREPARING if data.get(key) is False or data.get(key) == []]
        return extra | {key: value for key, value in data.items() if key not in idle}

    def preparation(self) -> Preparation:
        """What is done to the file's table."""
        return Preparation(**self.model_dump(include=set(PREPARING), exclude_none=True))


class ArchitectureSpec(Section):
    """The network: all but its weights."""

    kind: Annotated[str, one_of(("mlp", "residual"))] = "mlp"
    depth: Depth | None = None
    width: Count | None = None
    activation: Annotated[str, one_of(ACTIVATIONS)] = "linear"
    biases: StrictBool | None = None
    output: Annotated[str, one_of(OUTPUTS)] | None = None


class InitialisationSpec(Section):
    """The initial weights."""

    name: Annotated[str, one_of(INITIALISATIONS)] = "gaussian"
    scale: NonNegative | None = None


class _Method(Section):
    """How the weights move, and when a run ends; with what the methods have of their own."""

    name: Annotated[str, one_of(METHODS)] = "descent"
    learning_rate: Positive | None = None
    learning_rate_unit: Annotated[str, one_of(("absolute", "critical"))] | None = None
    steps: Steps | None = None
    tolerance: Positive | None = None
    learned_at: Share = LEARNED_AT

    def own(self) -> dict[str, Any]:
        """What is set of that."""
        given = {name: getattr(self, name) for name in OWN}
        return {name: value for name, value in given.items() if value is not None}

    def with_rates(self, rates: Any) -> Dynamics:
        """The method itself at these learning rates (in the engine's unit; not for flow)."""
        return method_of(self.name, learning_rate=rates, **self.own())

    @property
    def continuous(self) -> bool:
        """Whether it is gradient flow, which has no learning rate."""
        return bool(METHODS[self.name].continuous)


if TYPE_CHECKING:
    Method = _Method
else:
    Method = create_model(
        "Method",
        __base__=_Method,
        **{name: (Annotated[float, number(one.check)] | None, None) for name, one in OWN.items()},
    )


def _quantity(value: str) -> str:
    return check_choice("", value, recordable())


class RecordSpec(Section):
    """What is kept besides the row of each run."""

    every: Count | None = None
    quantities: tuple[Annotated[str, BeforeValidator(_quantity)], ...] = ()
    layers: bool = True

    @field_validator("quantities", mode="before")
    @classmethod
    def _renamed(cls, names: Any) -> Any:
        """Specs of schema version 1 have an older word for the excess risk."""
        if not isinstance(names, (list, tuple)):
            return names
        return tuple(RENAMED.get(name, name) if isinstance(name, str) else name for name in names)

    @model_validator(mode="after")
    def _together(self) -> RecordSpec:
        if (self.every is None) != (not self.quantities):
            raise ValueError("must have every and quantities together, or neither")
        return self
