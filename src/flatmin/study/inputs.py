"""What a shard works on: the data of a data set and the architecture of its networks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from flatmin.core.memory import check_memory
from flatmin.data.generators import gaussian_split, spectrum_samples, whitened_samples
from flatmin.data.regression import Regression, needed_bytes
from flatmin.data.samples import Samples
from flatmin.data.sets import paper_output_vector, paper_samples
from flatmin.network.architecture import Architecture, residual_output_vector
from flatmin.study.sections import Problem
from flatmin.study.spec import Study
from flatmin.theory.minimal_sharpness import minimal_sharpness


@dataclass(frozen=True, eq=False)
class Data:
    """One data set: the rows if they are needed, the regression, and rows to test on if any."""

    samples: Samples | None
    regression: Regression
    test: Samples | None

    def problem(self, linear: bool) -> Regression | Samples:
        """What the engine takes: linear networks need only the regression."""
        if linear:
            return self.regression
        assert self.samples is not None
        return self.samples


def data_of(study: Study, dataset: int) -> Data:
    """Data set number `dataset`: draw number so many of a generator, from 0."""
    if study.problem.file is None:
        seed = study.seed if study.problem.seed is None else study.problem.seed
        return _made(study.problem, seed + dataset)
    data = study.data
    if isinstance(data, Samples):
        return Data(data, data.regression(), None)
    return Data(None, data, None)


@lru_cache(maxsize=8)
def _made(problem: Problem, seed: int) -> Data:
    """Data that a generator or the paper gives."""
    if problem.paper is not None:
        samples = paper_samples(problem.paper)
        return Data(samples, samples.regression(), paper_samples(problem.paper, test=True))
    keys = {"n", "d", "noise", "condition_number", "alignment"}
    settings = problem.model_dump(include=keys, exclude_none=True) | {"seed": seed}
    n, columns = settings["n"], settings["d"] + 1
    check_memory(
        f"data of {n} rows and {columns} columns", 32.0 * n * columns + needed_bytes(columns)
    )
    if problem.generator == "gaussian":
        samples, test = gaussian_split(**settings)
        return Data(samples, samples.regression(), test)
    make = whitened_samples if problem.generator == "whitened" else spectrum_samples
    samples = make(**settings)
    return Data(samples, samples.regression(), None)


def inputs(study: Study) -> int:
    """The number of features; reads or draws the first data set, so that bad settings show."""
    return data_of(study, 0).regression.d


def architecture_of(study: Study, inputs: int, depth: int, width: int | None) -> Architecture:
    """The networks of a depth and width."""
    network = study.architecture
    if network.kind == "mlp":
        biases = bool(network.biases)
        return Architecture.mlp(inputs, depth, width, network.activation, biases=biases)
    if network.output == "paper":
        p = paper_output_vector()
    elif network.output == "paper-by-depth":
        p = paper_output_vector(depth)
    else:
        p = residual_output_vector(inputs, study.seed)
    return Architecture.residual(inputs, depth, p)


def minimal_sharpness_of(data: Data, architecture: Architecture) -> float:
    """S_min of linear networks of this depth and |p|; NaN with biases, where it does not apply."""
    if architecture.biases:
        return float("nan")
    return minimal_sharpness(data.regression, architecture.depth, architecture.output_norm).exact
