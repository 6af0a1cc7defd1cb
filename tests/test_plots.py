"""What is recorded reaches the axes of a picture: bands between extremes, and time of flows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flatmin.core.errors import SettingError
from flatmin.core.figures import new_figure
from flatmin.data.sets import paper_samples
from flatmin.dynamics.descent import descend
from flatmin.dynamics.figures import draw_trace, training_figure
from flatmin.dynamics.methods import GradientFlow
from flatmin.dynamics.recording import Recording
from flatmin.dynamics.training import train
from flatmin.dynamics.working_rates import rate_curve
from flatmin.network.architecture import Architecture
from flatmin.paper.figures import FEW, draw_means, run_figure
from flatmin.theory.prediction import predict

MLP = Architecture.mlp(5, 3)


@pytest.fixture(scope="module")
def descent() -> pd.DataFrame:
    run = train(paper_samples(), Architecture.mlp(5, 10), learning_rate=0.1, steps=400)
    return run.outcome.trace


def bands(panel) -> list[np.ndarray]:
    """The corners of every filled band."""
    return [path.vertices for one in panel.collections for path in one.get_paths()]


def assert_band(panel, along, low, high) -> None:
    """One of the panel's bands goes through these ends, and lines run along both."""
    ends = {(float(x), float(y)) for y in (low, high) for x, y in zip(along, y, strict=True)}
    assert any(ends <= set(map(tuple, corners)) for corners in bands(panel))
    drawn = [np.asarray(line.get_ydata(), float) for line in panel.lines]
    for end in (low, high):
        assert any(np.array_equal(line, end) for line in drawn)


def test_a_training_picture_shows_all_between_the_extremes(descent):
    left, middle, right = training_figure(descent, "title", 20.0, 18.7).axes
    for panel, name in ((left, "distance"), (left, "excess_risk"), (middle, "sharpness")):
        assert_band(panel, descent["step"], descent[f"{name}_low"], descent[f"{name}_high"])
    low, high = middle.get_ylim()
    assert low < descent["sharpness_low"].min()
    assert high > descent["sharpness_high"].max()
    # No line through the records alone, which would hide the alternation.
    assert not any(np.array_equal(line.get_ydata(), descent["sharpness"]) for line in middle.lines)
    assert all(panel.get_xlabel() == "step" for panel in (left, middle, right))


def test_figures_of_runs_show_all_between_the_extremes(descent):
    rows = pd.DataFrame({"run": [7], "learning_rate": [0.1]})
    left, right = run_figure(descent.assign(run=7), rows, 0.1, 18.7).axes
    assert_band(left, descent["step"], descent["distance_low"], descent["distance_high"])
    assert_band(right, descent["step"], descent["sharpness_low"], descent["sharpness_high"])


def test_a_trace_without_extremes_is_a_line():
    trace = pd.DataFrame({"step": [0, 5], "sharpness": [2.0, 3.0]})
    for frame in (trace, trace.assign(sharpness_low=np.nan, sharpness_high=np.nan)):
        _, (panel,) = new_figure(1)
        draw_trace(panel, frame["step"], frame, "sharpness", "C0", "sharpness")
        (line,) = panel.lines
        assert line.get_ydata().tolist() == [2.0, 3.0]
        assert not bands(panel)


def test_a_flow_is_drawn_against_its_time():
    quick = train(paper_samples(), MLP, scale=0.5, method=GradientFlow()).outcome.trace
    for panel in training_figure(quick, "title", None, 5.7).axes:
        assert panel.get_xscale() == "linear"
        assert np.array_equal(panel.lines[0].get_xdata(), quick["time"])
    # From near the saddle it waits for a long time: that is counted from where it leaves.
    slow = train(
        paper_samples(), MLP, init="zero-layer", scale=5e-4, method=GradientFlow()
    ).outcome.trace
    half = slow["time"][slow["excess_risk"] <= 0.5 * slow["excess_risk"].iloc[0]].iloc[0]
    for panel in training_figure(slow, "title", None, 5.7).axes:
        assert panel.get_xscale() == "symlog"
        np.testing.assert_allclose(panel.lines[0].get_xdata(), slow["time"] - half)
        assert f"{half:.4g}" in panel.get_xlabel()


def test_few_runs_are_drawn_themselves_and_many_as_an_interval():
    rng = np.random.default_rng(0)
    few = pd.DataFrame({"x": 1.0, "y": rng.lognormal(size=FEW - 1)})
    many = pd.DataFrame({"x": np.repeat([2.0, 3.0], FEW), "y": rng.lognormal(size=2 * FEW)})
    _, (panel,) = new_figure(1)
    table = draw_means(panel, pd.concat([few, many]), "x", "y", "runs", 0)
    dots = [one.get_offsets() for one in panel.collections if len(one.get_offsets()) > 1]
    assert len(dots) == 1
    np.testing.assert_allclose(np.asarray(dots[0]), few.to_numpy())
    (corners,) = bands(panel)[:1]
    assert corners[:, 0].min() == 2.0
    assert {table["low"][2.0], table["high"][3.0]} <= set(corners[:, 1])


def test_records_draw_themselves():
    data = paper_samples().regression()
    right = predict(data, 7).plot((1, 10)).axes[1]
    depths, rates = right.lines[0].get_data()
    assert list(depths) == [1, 7, 10]
    assert list(rates) == [predict(data, depth).critical_rate for depth in depths]
    run = train(data, MLP, learning_rate=0.02, steps=100)
    frame = run.outcome.trace
    for figure in (run.plot(), run.outcome.plot()):
        assert_band(figure.axes[0], frame["step"], frame["distance_low"], frame["distance_high"])
    # Only the whole run knows its rate, hence 2/eta.
    assert 100.0 in {line.get_ydata()[0] for line in run.plot().axes[1].lines}
    curve = rate_curve(data, MLP, runs=4, steps=200)
    panel = curve.plot(advised=0.01).axes[0]
    assert {line.get_xdata()[0] for line in panel.lines} == {curve.ceiling, 0.01}
    little = descend(data, run.initial, 0.02, 10, recording=Recording(1)).plot()
    assert [panel.get_ylabel() for panel in little.axes] == ["distance and excess risk"]
    with pytest.raises(SettingError, match="nothing was recorded"):
        descend(data, run.initial, 0.02, 10).plot()


def test_a_notebook_shows_a_figure_without_pyplot():
    shown = predict(paper_samples().regression(), 3).plot()._repr_png_()
    assert shown.startswith(b"\x89PNG")
