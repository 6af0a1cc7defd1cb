"""What is known before any training: flatness of minima and the rate above which none is stable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flatmin.core.checks import check_depth, check_positive
from flatmin.data.regression import Regression
from flatmin.theory.flattest_depth import flattest_depth
from flatmin.theory.minimal_sharpness import (
    CONVENTION,
    MinimalSharpness,
    minimal_sharpness,
    paper_learning_rate,
    vanishing_scale_limit,
)
from flatmin.theory.minimisers import product_rank
from flatmin.theory.slowest_direction import descent_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTHS = (1, 2, 5, 10, 20, 50, 100)  # that `Prediction.plot` compares
MANY_STEPS = 1e5  # from here on, slow descent is worth a note


@dataclass(frozen=True)
class Prediction:
    """S_min, the critical learning rate 2/S_min and the limit of small initialisation.

    The last and the paper's rate are known for one target only.
    """

    regression: Regression
    depth: int
    output_norm: float
    minimal: MinimalSharpness
    small_init_sharpness: float | None
    paper_rate: float | None

    def __repr__(self) -> str:
        found = f"S_min={self.exact:.6g}, critical_rate={self.critical_rate:.6g}"
        return f"Prediction(depth={self.depth}, {found})"

    @property
    def exact(self) -> float:
        """S_min."""
        return self.minimal.exact

    @property
    def critical_rate(self) -> float:
        """No minimiser is linearly stable above this rate: 2/S_min."""
        return 2.0 / self.exact

    @cached_property
    def flattest_depth(self) -> int:
        """The depth with the smallest S_min for these data and |p|."""
        return flattest_depth(self.regression, self.output_norm)

    def sentence(self) -> str:
        """What the theory says to the person about to train."""
        return (
            f"At depth {self.depth} gradient descent cannot settle at a minimiser with a learning "
            f"rate above {self.critical_rate:.4g}."
        )

    def plot(self, depths: Sequence[int] = DEPTHS) -> Figure:
        """S_min and the critical learning rate against depth, for these depths and this one."""
        from flatmin.theory.figures import depth_figure

        shown = sorted({*depths, self.depth})
        return depth_figure([predict(self.regression, one, self.output_norm) for one in shown])

    def as_dict(self) -> dict[str, Any]:
        """The prediction as plain numbers, ready for JSON."""
        data = self.regression
        return {
            "n": data.n,
            "d": data.d,
            "targets": data.targets,
            "rank": data.rank,
            "w_star_norm": data.w_star_norm,
            "a": data.a if data.targets == 1 else None,
            "smallest_eigenvalue": data.smallest_eigenvalue,
            "largest_eigenvalue": data.largest_eigenvalue,
            "condition_number": data.condition_number,
            "risk_min": data.risk_min,
            "preparation": list(data.preparation),
            "depth": self.depth,
            "output_norm": self.output_norm,
            "minimal_sharpness": {
                "lower": self.minimal.lower,
                "exact": self.exact,
                "upper": self.minimal.upper,
            },
            "flattest_depth": self.flattest_depth,
            "small_init_sharpness": self.small_init_sharpness,
            "critical_learning_rate": {"exact": self.critical_rate, "paper": self.paper_rate},
            "ceiling": self.sentence(),
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """What a careful reader should know about these numbers."""
        notes = [f"sharpness: {CONVENTION}", *self.regression.notes()]
        notes.append(
            "the critical rate is a ceiling, not a promise: above it gradient descent settles at "
            "no minimiser, though it may stay bounded; below it, it may still fail"
        )
        steps = None
        if self.regression.targets > 1:
            rank = product_rank(self.regression)
            if self.depth > 1 and rank > 1:
                notes.append(
                    f"several targets: S_min is that of networks whose hidden layers have at least "
                    f"{rank} units, the rank of P*; narrower ones reach no minimiser"
                )
        else:
            steps = descent_steps(self.regression, self.depth, self.output_norm)
        if steps is not None and steps > MANY_STEPS:
            notes.append(
                f"descent is slow on these data: near the flattest minimiser, at half the critical "
                f"rate, it takes {steps:.1g} steps to divide the risk along the direction of the "
                f"smallest eigenvalue ({self.regression.smallest_eigenvalue:.3g}) by 1000"
            )
        if self.depth == 1:
            notes.append("at depth 1 the risk is quadratic: its sharpness is the same everywhere")
        return notes


def predict(regression: Regression, depth: int, output_norm: float = 1.0) -> Prediction:
    """Everything the theory says for a depth and |p|, without training.

    >>> from flatmin.data.generators import gaussian_samples
    >>> prediction = predict(gaussian_samples(seed=0).regression(), depth=10)
    >>> prediction.minimal.lower <= prediction.exact <= prediction.small_init_sharpness
    True
    """
    depth, norm = check_depth(depth), check_positive("output norm", output_norm)
    least = minimal_sharpness(regression, depth, norm)
    if regression.targets > 1:
        return Prediction(regression, depth, norm, least, None, None)
    return Prediction(
        regression,
        depth,
        norm,
        least,
        vanishing_scale_limit(regression, depth, norm),
        paper_learning_rate(regression, depth, norm),
    )


def flattest_of(predictions: Sequence[Prediction]) -> Prediction | None:
    """Of predictions for several depths the one with the smallest S_min."""
    return min(predictions, key=lambda one: one.exact, default=None)
