"""Figures of predictions. Nothing here computes results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flatmin.core.figures import BLACK, BLUE, ORANGE, RED, SKY, new_figure, plain_log_ticks
from flatmin.theory.prediction import Prediction, flattest_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def depth_figure(predictions: Sequence[Prediction]) -> Figure:
    """S_min between its bounds, and the critical learning rate, against depth."""
    figure, (left, right) = new_figure(2)
    depths = [one.depth for one in predictions]
    lower = [one.minimal.lower for one in predictions]
    upper = [one.minimal.upper for one in predictions]
    left.fill_between(depths, lower, upper, color=SKY, alpha=0.3, lw=0)
    left.plot(depths, lower, ":", color=BLACK, label="lower bound")
    left.plot(depths, upper, "--", color=BLACK, label="upper bound")
    left.plot(depths, [one.exact for one in predictions], "o-", color=BLUE, label="exact")
    flattest = flattest_of(predictions)
    if flattest is not None:
        label, least = f"flattest of these: {flattest.depth}", flattest.exact
        left.plot(flattest.depth, least, "*", ms=13, color=ORANGE, label=label)
    left.set(xlabel="depth L", ylabel="minimal sharpness S_min", xscale="log", yscale="log")
    left.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    rate = [one.critical_rate for one in predictions]
    right.plot(depths, rate, "o-", color=BLUE, label="2 / S_min, exact")
    paper = [one.paper_rate for one in predictions if one.paper_rate is not None]
    if paper:
        right.plot(depths, paper, "x--", color=RED, label="the paper's approximation")
    right.set(xlabel="depth L", ylabel="critical learning rate", xscale="log", yscale="log")
    right.legend(frameon=False)
    for panel in (left, right):
        panel.set_xticks(depths, labels=[str(depth) for depth in depths])
        panel.set_xticks([], minor=True)
        plain_log_ticks(panel.yaxis)
    return figure
