"""The paper's figures in its order: which studies each needs, how it is drawn, what it claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flatmin.data.regression import Regression
from flatmin.data.sets import paper_output_vector, paper_samples
from flatmin.paper import claims, figures
from flatmin.paper.tables import Item, Tables
from flatmin.theory.minimal_sharpness import minimal_sharpness

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _linear() -> Regression:
    return paper_samples("linear").regression()


def _p_norm() -> float:
    p = paper_output_vector()
    return float((p @ p) ** 0.5)


def _run(study: str, rate: float) -> Callable[[Tables], Figure]:
    def draw(tables: Tables) -> Figure:
        least = minimal_sharpness(_linear(), 10).exact
        return figures.run_figure(tables[study].traces, tables[study].rows, rate, least)

    return draw


ITEMS: tuple[Item, ...] = (
    Item(
        "1a",
        "Distance to the best regressor after training",
        "Gaussian initialisation, depth 10. Below the critical rate the runs that do not diverge "
        "succeed at every scale; above it the network does not learn.",
        ("linear",),
        lambda tables: figures.distance_figure(tables["linear"].rows),
        lambda tables: claims.success_and_failure(tables["linear"].rows, _linear(), "1a", 10, 1.0),
    ),
    Item(
        "1b",
        "Sharpness before and after training",
        "Small scales end near S_min at every rate below the critical one; large scales end at "
        "2/eta (dashed), the edge of stability. Dotted: the paper's bounds. The exact S_min is "
        "this project's.",
        ("linear",),
        lambda tables: figures.sharpness_figure(tables["linear"].rows, _linear(), 10),
        lambda tables: (
            claims.small_scale(tables["linear"].rows, _linear(), 10)
            + claims.plateau(tables["linear"].rows, "1b", [0.07], 3)
            + claims.edge_bounds(tables["linear"].rows, "1b")
        ),
    ),
    Item(
        "1c",
        "One run below the edge of stability",
        "At rate 0.02 sharpness rises during training and settles well below 2/eta.",
        ("linear-trace",),
        _run("linear-trace", 0.02),
        lambda tables: claims.two_runs(tables["linear-trace"], ("1c", "1d")),
    ),
    Item(
        "1d",
        "One run at the edge of stability",
        "At rate 0.1 sharpness rises to 2/eta and oscillates around it while the distance falls.",
        ("linear-trace",),
        _run("linear-trace", 0.1),
    ),
    Item(
        "2",
        "Where learning stops, by depth",
        "Residual networks of four depths. Learning stops where the learning rate passes 2/S_min: "
        "solid, exact; dotted, as the paper approximates it.",
        ("depth",),
        lambda tables: figures.depth_figure(tables["depth"].rows, _linear()),
        lambda tables: (
            claims.depth_thresholds(tables["depth"].rows, _linear())
            + claims.edge_bounds(tables["depth"].rows, "2")
        ),
    ),
    Item(
        "3",
        "Probability of divergence",
        "Gaussian initialisation: large scales diverge, the more often the larger the rate.",
        ("linear",),
        lambda tables: figures.divergence_figure(tables["linear"].rows),
        lambda tables: claims.divergence_rises(tables["linear"].rows, "3"),
    ),
    Item(
        "4a",
        "Distance to the best regressor, residual initialisation",
        "As 1a for residual networks.",
        ("residual",),
        lambda tables: figures.distance_figure(tables["residual"].rows),
        lambda tables: claims.success_and_failure(
            tables["residual"].rows, _linear(), "4a", 10, _p_norm()
        ),
    ),
    Item(
        "4b",
        "Sharpness before and after training, residual initialisation",
        "As 1b for residual networks; sharpness at initialisation depends less on the scale.",
        ("residual", "linear"),
        lambda tables: figures.sharpness_figure(
            tables["residual"].rows, _linear(), 10, _p_norm(), corollary=False
        ),
        lambda tables: (
            claims.initial_sensitivity(tables["linear"].rows, tables["residual"].rows)
            + claims.plateau(tables["residual"].rows, "4b", [0.07], 3)
            + claims.edge_bounds(tables["residual"].rows, "4b")
        ),
    ),
    Item(
        "4c",
        "One residual run below the edge of stability",
        "As 1c for a residual network.",
        ("residual-trace",),
        _run("residual-trace", 0.02),
        lambda tables: claims.two_runs(tables["residual-trace"], ("4c", "4d")),
    ),
    Item(
        "4d",
        "One residual run at the edge of stability",
        "As 1d for a residual network.",
        ("residual-trace",),
        _run("residual-trace", 0.1),
    ),
    Item(
        "5",
        "Probability of divergence, residual initialisation",
        "As 3 for residual networks.",
        ("residual",),
        lambda tables: figures.divergence_figure(tables["residual"].rows),
        lambda tables: claims.divergence_rises(tables["residual"].rows, "5"),
    ),
    Item(
        "6a",
        "Sharpness for underdetermined regression",
        "As 1b with more features than rows.",
        ("underdetermined",),
        lambda tables: figures.sharpness_figure(
            tables["underdetermined"].rows, paper_samples("underdetermined").regression(), 5
        ),
        lambda tables: claims.edge_bounds(tables["underdetermined"].rows, "6a"),
    ),
    Item(
        "6b",
        "Generalisation gap against sharpness",
        "Underdetermined regression at rate 0.001: flatter minima generalise better on these data. "
        "The slope belongs to the data set: see the last part of the report for other draws.",
        ("underdetermined",),
        lambda tables: figures.generalisation_figure(tables["underdetermined"].rows),
        lambda tables: claims.generalisation(tables["underdetermined"].rows),
    ),
    Item(
        "7",
        "Sharpness of GELU networks",
        "As 1b for networks with GELU on noiseless data, beside the bounds of linear networks.",
        ("gelu",),
        lambda tables: figures.sharpness_figure(
            tables["gelu"].rows, paper_samples("nonlinear").regression(), 10
        ),
        lambda tables: (
            claims.gelu_small_scale(
                tables["gelu"].rows, paper_samples("nonlinear").regression(), 10
            )
            + claims.plateau(tables["gelu"].rows, "7", [0.005, 0.02, 0.07], 2)
        ),
    ),
)

FIGURES = tuple(item.id for item in ITEMS)
