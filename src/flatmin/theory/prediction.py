"""What is known before any training: flatness of minima and the rate above which none is stable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flatmin.core.checks import check_depth, check_positive, number_in, number_of, shown
from flatmin.core.errors import SettingError
from flatmin.core.pages import Listing, Page, Remarks, number
from flatmin.core.shown import Shown
from flatmin.data.regression import Regression
from flatmin.data.samples import Problem, regression_of
from flatmin.theory.flattest_depth import flattest_depth
from flatmin.theory.minimal_sharpness import (
    CONVENTION,
    MinimalSharpness,
    minimal_sharpness,
    paper_learning_rate,
    vanishing_scale_limit,
)
from flatmin.theory.minimisers import product_rank
from flatmin.theory.narrow import best_of_rank
from flatmin.theory.slowest_direction import descent_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flatmin.theory.certificate import Certificate

DEPTHS = (1, 2, 5, 10, 20, 50, 100)  # that `Prediction.plot` compares
MANY_STEPS = 1e5  # from here on, slow descent is worth a note


class Prediction(Shown):
    """S_min, the critical learning rate 2/S_min and the limit of small initialisation.

    The last and the paper's rate are known for one target only.
    """

    regression: Regression
    depth: int
    output_norm: float
    minimal: MinimalSharpness
    small_init_sharpness: float | None = None
    paper_rate: float | None = None

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

    def least_of_width(self, width: int) -> float:
        """A lower bound of S at every best point of networks with this narrowest layer.

        S_min itself where the layer is wide enough to reach R_min, or there is one target.
        """
        if self.regression.targets == 1 or self.depth == 1:
            return self.exact
        return minimal_sharpness(best_of_rank(self.regression, width), self.depth).exact

    @cached_property
    def certificate(self) -> Certificate:
        """The pair (t, x) that proves S_min, with what it is about."""
        from flatmin.theory.certificate import certify

        return certify(self.regression, self.depth, self.output_norm)

    def verify(self) -> bool:
        """Whether both ends follow from the pair, Sigma and P* alone, and S_min lies within them.

        The ends are recomputed with every rounding accounted for; nothing is solved.
        """
        proof = self.certificate
        margin = 1e-9 * self.exact  # S_min itself is in double precision
        return proof.verify() and proof.lower - margin <= self.exact <= proof.upper + margin

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

    def contents(self) -> dict[str, Any]:
        """The data, the depth and everything that follows."""
        return {
            **self.regression.contents(),
            "depth": self.depth,
            "output_norm": self.output_norm,
            "minimal_sharpness": {k: getattr(self.minimal, k) for k in ("lower", "exact", "upper")},
            "flattest_depth": self.flattest_depth,
            "small_init_sharpness": self.small_init_sharpness,
            "critical_learning_rate": {"exact": self.critical_rate, "paper": self.paper_rate},
            "ceiling": self.sentence(),
            "notes": self.notes(),
        }

    def rows(self) -> list[tuple[str, str]]:
        """The table of `page`."""
        data, one = self.regression, self.regression.targets == 1
        network = "output norm |p|" if one else "targets"
        rows = [
            *data.rows(),
            (f"Depth L, {network}", f"{self.depth}, {self.output_norm if one else data.targets:g}"),
            ("", ""),
            ("S_min, lower bound", number(self.minimal.lower)),
            ("S_min, exact", number(self.exact)),
            ("S_min, upper bound", number(self.minimal.upper)),
        ]
        if self.small_init_sharpness is not None:
            rows.append(("Limit from small initialisation", number(self.small_init_sharpness)))
        rows += [("", ""), ("Critical learning rate 2/S_min", number(self.critical_rate))]
        if self.paper_rate is not None:
            rows.append(("  as the paper approximates it", number(self.paper_rate)))
        return rows

    def page(self) -> Page:
        """What `flatmin predict --no-measure` prints."""
        notes = [*self.regression.preparation, *self.notes()]
        return [Listing(("Before training", ""), self.rows()), Remarks(self.sentence(), notes)]

    def notes(self) -> list[str]:
        """What a careful reader should know about these numbers."""
        notes = [f"sharpness: {CONVENTION}", *self.regression.notes()]
        notes.append(
            "the critical rate is a ceiling, not a promise: above it gradient descent settles at "
            "no minimiser, though it may stay bounded; below it, it may still fail"
        )
        one, rank, steps = self.regression.targets == 1, product_rank(self.regression), 0.0
        if one:
            steps = descent_steps(self.regression, self.depth, self.output_norm)
        elif self.depth > 1 and rank > 1:
            units = sorted({1, rank - 1})
            bounds = " and ".join(f"{self.least_of_width(unit):.4g} with {unit}" for unit in units)
            notes.append(
                f"several targets: S_min is that of networks whose hidden layers have at least "
                f"{rank} units, the rank of P*; narrower ones reach no minimiser, and at their "
                f"best points S is at least {bounds}"
            )
        if steps > MANY_STEPS:
            notes.append(
                f"descent is slow on these data: near the flattest minimiser, at half the critical "
                f"rate, it takes {steps:.1g} steps to divide the risk along the direction of the "
                f"smallest eigenvalue ({self.regression.smallest_eigenvalue:.3g}) by 1000"
            )
        if self.depth == 1:
            notes.append("at depth 1 the risk is quadratic: its sharpness is the same everywhere")
        return notes


def predict(regression: Problem, depth: int, output_norm: float = 1.0) -> Prediction:
    """Everything the theory says for a depth and |p|, without training.

    >>> from flatmin.data.generators import gaussian_samples
    >>> prediction = predict(gaussian_samples(seed=0).regression(), depth=10)
    >>> prediction.minimal.lower <= prediction.exact <= prediction.small_init_sharpness
    True
    """
    regression = regression_of(regression)
    depth, norm = check_depth(depth), check_positive("output_norm", output_norm)
    one = regression.targets == 1
    return Prediction(
        regression=regression,
        depth=depth,
        output_norm=norm,
        minimal=minimal_sharpness(regression, depth, norm),
        small_init_sharpness=vanishing_scale_limit(regression, depth, norm) if one else None,
        paper_rate=paper_learning_rate(regression, depth, norm) if one else None,
    )


def check_rate(rate: object) -> tuple[float, bool]:
    """A learning rate as people write it, and whether it is a multiple of the critical one.

    >>> check_rate(0.1), check_rate("critical"), check_rate("0.5critical")
    ((0.1, False), (1.0, True), (0.5, True))
    """
    factor, multiple, rest = str(rate).partition("critical")
    if isinstance(rate, str):
        value = number_in((factor or "1") if multiple and not rest else rate)
    else:
        value = number_of(rate)
    if value is None or not 0.0 < value < float("inf"):
        raise SettingError(
            "learning_rate must be a positive number, or a multiple of the critical one such as "
            f"0.5critical, got {shown(rate)}"
        )
    return check_positive("learning_rate", value), bool(multiple)


def flattest_of(predictions: Sequence[Prediction]) -> Prediction | None:
    """Of predictions for several depths the one with the smallest S_min."""
    return min(predictions, key=lambda one: one.exact, default=None)
