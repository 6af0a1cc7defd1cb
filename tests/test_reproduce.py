"""`flatmin reproduce` end to end at the quick preset, and the figures' structure."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from flatmin.cli import main
from flatmin.data.sets import paper_samples
from flatmin.paper import catalogue, figures
from flatmin.paper.shipped import shipped_study
from flatmin.theory.minimal_sharpness import critical_learning_rate, minimal_sharpness

DATA = paper_samples("linear").regression()

# Runs and network steps of the paper's experiments, from its appendix and its authors' grids.
SIZES = {
    "linear": (10 * 160, 10 * (40000 * 20 + 10000 * 20 + 4000 * 40 + 2000 * 80)),
    "linear-trace": (2, 900),
    "depth": (4 * 25 * 50, 4 * 25 * 50 * 1000),
    "residual": (10 * 5 * 20, 10 * 5 * 20 * 4000),
    "residual-trace": (2, 800),
    "underdetermined": (9 * 140, 9 * (40000 * 100 + 10000 * 20 + 4000 * 20)),
    "gelu": (8 * 60, 8 * 20 * (160000 + 40000 + 16000)),
}


@pytest.mark.parametrize("name", SIZES)
def test_shipped_studies_have_the_papers_sizes(name):
    from flatmin.study.plan import plan

    runs = [run for shard in plan(shipped_study(name)) for run in shard.runs]
    assert (len(runs), sum(run.steps for run in runs)) == SIZES[name]
    quick = [run for shard in plan(shipped_study(name, "quick")) for run in shard.runs]
    assert len(quick) < len(runs) or len(runs) == 2
    points = {(run.depth, run.scale, run.learning_rate, run.steps) for run in runs}
    assert {(run.depth, run.scale, run.learning_rate, run.steps) for run in quick} == points


def test_every_figure_names_studies_that_exist():
    assert (
        *("1a", "1b", "1c", "1d", "2", "3", "4a", "4b", "4c", "4d", "5", "6a", "6b", "7"),
    ) == catalogue.FIGURES
    for item in catalogue.ITEMS:
        assert set(item.studies) <= set(SIZES)


@pytest.fixture(scope="module")
def reproduction(tmp_path_factory):
    """All figures at the quick preset, through the command; then two again, only drawn."""
    directory = tmp_path_factory.mktemp("reproduction")
    options = ["--preset", "quick", "--out", str(directory)]
    before = sys.argv
    try:
        for figures in ((), ("1b", "2")):
            sys.argv = ["flatmin", "reproduce", *figures, *options]
            with pytest.raises(SystemExit) as stop:
                main()
            assert stop.value.code == 0  # claims without enough runs are no failures
            if not figures:
                (directory / "report.json").rename(directory / "all.json")
    finally:
        sys.argv = before
    return directory


def test_output(reproduction):
    names = {path.name for path in (reproduction / "figures").iterdir()}
    assert names == {f"figure-{k}.{s}" for k in catalogue.FIGURES for s in ("png", "pdf")}
    assert {path.name for path in (reproduction / "data").iterdir()} == set(SIZES)
    rows = pd.concat(
        pd.read_parquet(path) for path in (reproduction / "data" / "linear" / "runs").iterdir()
    )
    assert len(rows) == 10 * (4 + 4 + 4 + 4 + 16)


def test_report_json(reproduction):
    some = json.loads((reproduction / "report.json").read_text())
    assert set(some["seconds"]["figures"]) == {"1b", "2"}
    report = json.loads((reproduction / "all.json").read_text())
    assert report["preset"] == "quick"
    assert set(report["seconds"]) == {"total", "figures", "studies"}
    assert set(report["seconds"]["figures"]) == set(catalogue.FIGURES)
    assert {claim["figure"] for claim in report["claims"]} == set(catalogue.FIGURES)
    for claim in report["claims"]:
        assert set(claim) == {
            *("id", "figure", "statement", "expected", "measured", "tolerance", "verdict"),
            "needs",
        }
        assert claim["verdict"] in ("holds", "fails", "undecided")
        assert bool(claim["needs"]) == (claim["verdict"] == "undecided")
        assert claim["measured"] is None or isinstance(claim["measured"], float)
    found = {claim["id"]: claim["verdict"] for claim in report["claims"]}
    assert report["verdicts"] == {
        word: list(found.values()).count(word) for word in ("holds", "fails", "undecided")
    }
    # One run a point is not enough for the medians of Figure 7.
    assert found["7-plateau-0.005"] == found["7-plateau-0.02"] == "undecided"
    assert found["1b-above-s-min"] == found["1b-below-edge"] == "holds"
    assert len(found) == len(report["claims"])


def test_report_html_is_one_page_that_needs_nothing_else(reproduction):
    page = (reproduction / "report.html").read_text()
    sources = re.findall(r"src='([^']{0,30})", page)
    assert len(sources) == 2
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in page
    assert "no factor 1/2" in page
    assert "Quick preset" in page
    places = set(re.findall(r" id='([^']+)'", page))
    links = re.findall(r" href='#([^']+)'", page)
    assert set(links) <= places
    assert {"1b", "2", "claims", "claim-1b-above-s-min"} <= set(links)
    HTMLParser().feed(page)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "8"], "figure must be one of"),
        (["reproduce", "--preset", "fast"], "preset must be one of"),
        (["reproduce", "1a", "--out", "/dev/null/x"], "cannot be made"),
    ],
)
def test_bad_input(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["flatmin", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err


def sweep() -> pd.DataFrame:
    rates, scales = (0.02, 0.07, 0.2), (0.3, 0.4, 0.5)
    return pd.DataFrame(
        [
            {
                "learning_rate": rate,
                "scale": scale,
                "state": "diverged" if scale == 0.5 and rate == 0.2 else "settled",
                "distance": 1e-9 * (1 + k),
                "initial_distance": 1.0 + k,
                "initial_sharpness": 100 * scale + k,
                "sharpness": 20.0 + k,
            }
            for rate in rates
            for scale in scales
            for k in range(5)
        ]
    )


def test_bands_are_geometric_means_with_t_intervals():
    from scipy.stats import t

    values = np.array([1.0, 2.0, 4.0, 8.0])
    rows = pd.DataFrame({"x": 1.0, "y": values})
    found = figures.band(rows, "x", "y").loc[1.0]
    logs = np.log(values)
    width = t.ppf(0.975, 3) * logs.std(ddof=1) / 2
    assert found["mean"] == pytest.approx(np.exp(logs.mean()))
    assert found["high"] == pytest.approx(np.exp(logs.mean() + width))


def test_sharpness_figure_shows_bounds_edges_and_the_exact_value():
    figure = figures.sharpness_figure(sweep(), DATA, 10)
    (panel,) = figure.axes
    levels = {
        round(float(line.get_ydata()[0]), 6)
        for line in panel.lines
        if len(line.get_ydata()) == 2 and line.get_ydata()[0] == line.get_ydata()[1]
    }
    exact = minimal_sharpness(DATA, 10)
    for level in (2 / 0.02, 2 / 0.07, exact.exact, exact.lower):
        assert round(level, 6) in levels
    assert 2 / 0.2 not in levels
    low, high = panel.get_ylim()
    assert low < 30.0 / 2  # the initial sharpness of the smallest scale, and S_min, 18.7
    assert 2 / 0.02 < high < 1000


def test_a_point_is_left_out_where_every_run_diverged():
    (panel,) = figures.distance_figure(sweep()).axes
    lengths = {line.get_label(): len(line.get_xdata()) for line in panel.lines}
    assert lengths == {"initialisation": 3, "rate 0.02": 3, "rate 0.07": 3, "rate 0.2": 2}


def test_depth_figure_draws_both_predictions():
    rows = pd.DataFrame(
        [
            {"depth": depth, "learning_rate": rate, "distance": 1e-6, "state": "settled"}
            for depth in (5, 10)
            for rate in (0.05, 0.1)
        ]
    )
    (panel,) = figures.depth_figure(rows, DATA).axes
    verticals = [
        line.get_xdata()[0]
        for line in panel.lines
        if len(line.get_xdata()) == 2 and line.get_xdata()[0] == line.get_xdata()[1]
    ]
    assert len(verticals) == 4
    assert any(np.isclose(v, critical_learning_rate(DATA, 5)) for v in verticals)


def test_the_other_figures_have_labels():
    rows = sweep().assign(run=range(45), train_risk=0.1, test_risk=np.linspace(0.2, 3.0, 45))
    trace = pd.DataFrame({"run": 0, "step": [0, 5, 10], "distance": 0.1, "sharpness": 30.0})
    made = [
        figures.divergence_figure(rows),
        figures.run_figure(trace, rows, 0.02, 18.7),
        figures.generalisation_figure(
            rows.assign(learning_rate=0.001, sharpness=np.geomspace(20, 500, 45))
        ),
    ]
    for figure in made:
        for panel in figure.axes:
            assert panel.get_xlabel()
            assert panel.get_ylabel()
