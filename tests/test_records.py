"""Every record: keyword-only, one line, the command's table, HTML that escapes, plain values."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import fields
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

import flatmin
from commands import call
from flatmin.core.shown import Shown
from flatmin.dynamics.thresholds import Threshold
from flatmin.dynamics.training import Training
from flatmin.ledger.ledger import Ledger
from flatmin.probes.density import density, trace
from flatmin.probes.measure import along, ends, largest
from flatmin.probes.record import LinearTruth
from flatmin.probes.watch import Check
from flatmin.study.estimate import Estimate, estimate
from flatmin.study.results import Verification
from flatmin.study.runner import StudyRun
from flatmin.study.summary import Overview
from flatmin.theory.flip import flip
from flatmin.theory.oscillation import mode_orbit
from flatmin.theory.prediction import check_rate
from test_probes import example

SPEC = {
    "name": "small",
    "problem": {"paper": "linear"},
    "architecture": {"depth": 3},
    "repetitions": 4,
    "method": {"learning_rate": 0.05, "steps": 300},
    "grid": {"scale": [0.3, 0.5]},
}
ATLAS = {"depths": (2, 3), "c": [0.9, 1.1], "starts": 1, "steps": 400, "runs": 2}
MAPPED = (
    *("atlas", "--depths", "2,3", "--rates", "0.9,1.1", "--starts", 1, "--steps", 400, "--runs", 2),
)
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Any:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def table(folder: Any) -> Any:
    """A table whose column names are markup."""
    rows = flatmin.gaussian_samples(n=30, d=2, seed=1)
    frame = pd.DataFrame(np.column_stack([rows.X, rows.y]), columns=[SCRIPT, "b", "<b>y"])
    frame.to_csv(folder / "rows.csv", index=False)
    return folder / "rows.csv"


@pytest.fixture(scope="module")
def records(folder: Any, table: Any) -> dict[str, Any]:
    samples = flatmin.read_samples(table, "<b>y")
    data = samples.regression()
    forecast = flatmin.forecast(data, 2, depths=(2, 3))
    training = flatmin.train_network(samples, 2, learning_rate="0.5critical", steps=400)
    training.save(folder / "run")
    start = flatmin.initialise(training.architecture, "gaussian", 0.5, 0, networks=3)
    study = flatmin.Study(SPEC)
    (folder / "small.toml").write_text(study.to_toml())
    summary = flatmin.run_study(study, folder / "study")
    certificate = flatmin.certify(data, 2)
    certificate.write(folder / "proof.json")
    ledger = flatmin.check(training)
    atlases = flatmin.atlases(data, **ATLAS)
    atlas = atlases.depths[0]
    model = example()[0]
    found = [
        *(samples, data, forecast, forecast.prediction, forecast.advice, training),
        *(flatmin.sharpness(samples, start), training.final_sharpness),
        flatmin.descend(samples, start, 0.05, 200),
        *(forecast.prediction.minimal, certificate, ledger, ledger[0], summary),
        *(summary.summary(), estimate(study, 1)),
        flatmin.rate_curve(data, training.architecture, runs=5, steps=300),
        *((results := flatmin.Results(directory=folder / "study")), results.verify()),
        *(atlases, atlas, atlas.orbits, atlas.basins, flip(data, 2), mode_orbit(2, 1.2)),
        *(Threshold(c=1.2, error=0.01), training.outcome.recorded, summary.facets()),
        *(largest(model), ends(model, 2), along(model, "gradient"), density(model), trace(model)),
        LinearTruth(sharpness=2.0, minimal_sharpness=1.0),
        Check(
            step=1,
            seconds=0.1,
            gauge="SGD",
            measured=2.0,
            low=1.9,
            high=2.1,
            edge=20.0,
            rate=0.1,
            products=2,
            full=True,
        ),
    ]
    return {f"{type(one).__name__}{i}": one for i, one in enumerate(found)}


def only(records: dict[str, Any], kind: type) -> Any:
    (found,) = [one for one in records.values() if type(one) is kind]
    return found


class Tags(HTMLParser):
    """Tags that are opened and closed in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_all_kinds_are_here(records):
    """Every class of records that has a page of its own, and is not private."""
    import flatmin.paper.report  # noqa: F401

    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    known = {type(one) for one in records.values()}
    elsewhere = {"Claim", "Report", "RatePoint"}
    made = {one for one in below(Shown) - {Shown} if one.__module__.startswith("flatmin.")}
    assert {one.__name__ for one in made - known} <= elsewhere


def test_one_line(records):
    for one in records.values():
        assert repr(one).startswith(f"{type(one).__name__}(")
        assert "\n" not in repr(one)
        assert len(repr(one)) < 300


def test_fields_have_names_only(records):
    for one in records.values():
        values = [getattr(one, field.name) for field in fields(one)]
        with pytest.raises(TypeError, match="positional"):
            type(one)(*values)


def test_plain_values(records):
    for one in records.values():
        json.dumps(one.as_dict(), allow_nan=False)


def test_html_is_whole_and_escaped(records):
    shown = ""
    for one in records.values():
        page = one._repr_html_()
        tags = Tags()
        tags.feed(page)
        tags.close()
        assert not tags.open
        assert tags.seen <= {"table", "thead", "tbody", "tr", "td", "th", "p", "b", "ul", "li"}
        assert page.startswith(("<table>", "<p>"))
        shown += page
    assert "&lt;script&gt;" in shown
    assert "&lt;b&gt;y" in shown


def test_the_command_prints_the_record(records, table, folder, monkeypatch, capsys):
    def printed(*arguments: object) -> str:
        code, out, err = call(monkeypatch, capsys, *arguments)
        assert (code, err) == (0, "")
        return out

    data = ("--target", "<b>y")
    assert (
        printed("predict", table, *data, "--depths", "2,3")
        == f"{only(records, flatmin.Forecast)}\n"
    )
    prediction = only(records, flatmin.Prediction)
    assert printed("predict", table, *data, "--depth", "2", "--no-measure") == f"{prediction}\n"
    assert printed(*MAPPED, table, *data) == f"{only(records, flatmin.Atlases)}\n"
    run = ("train", table, *data, "--depth", "2", "--learning-rate", "0.5critical")
    assert printed(*run, "--steps", "400") == f"{only(records, Training)}\n"
    assert printed("check", folder / "run") == f"{only(records, Ledger)}\n"
    assert printed("verify", folder / "proof.json") == f"{only(records, flatmin.Certificate)}\n"
    assert printed("study", "show", folder / "study") == f"{only(records, Overview)}\n"
    assert printed("study", "verify", folder / "study") == f"{only(records, Verification)}\n"
    # What depends on the clock is left out: times, and what is done now.
    again = printed("study", "run", folder / "small.toml", "--out", folder / "study")
    timeless = [line for line in again.splitlines() if "finished" in line or "Folder" in line]
    assert timeless
    assert set(timeless) <= set(str(only(records, StudyRun)).splitlines())
    counted = printed("study", "check", folder / "small.toml", "--threads", "1").splitlines()
    assert [line for line in counted if "Runs" in line or "steps" in line or "Shards" in line] == [
        line
        for line in str(only(records, Estimate)).splitlines()
        if "Runs" in line or "steps" in line or "Shards" in line
    ]


def test_the_command_prints_plain_values(records, table, folder, monkeypatch, capsys):
    for record, arguments in (
        (
            only(records, flatmin.Forecast),
            ("predict", table, "--target", "<b>y", "--depths", "2,3"),
        ),
        (only(records, Overview), ("study", "show", folder / "study")),
        (only(records, flatmin.Atlases), (*MAPPED, table, "--target", "<b>y")),
    ):
        out = call(monkeypatch, capsys, *arguments, "--json")[1]
        assert json.loads(out) == record.as_dict()
    out = call(monkeypatch, capsys, "check", folder / "run", "--json")[1]
    assert json.loads(out) == only(records, Ledger).as_dict()["records"]


def test_pictures(records):
    for kind in (flatmin.Forecast, flatmin.Prediction, Training, Ledger, StudyRun, flatmin.Results):
        assert only(records, kind).plot().axes
    for kind in (flatmin.RateCurve, flatmin.Atlas, flatmin.Atlases):
        assert only(records, kind).plot().axes


def test_results_are_frames(records):
    summary = only(records, StudyRun)
    assert len(summary.runs) == 8
    assert set(summary.runs["scale"]) == {0.3, 0.5}
    trace = only(records, Training).trace
    assert {"step", "excess_risk", "sharpness"} <= set(trace.columns)


def test_a_study_without_a_directory_keeps_one_while_it_is_needed():
    found = flatmin.run_study(SPEC)
    place = found.directory
    assert len(found.runs) == 8
    assert flatmin.check(found).networks == 8
    del found
    assert not place.exists()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"problem": {"paper": "linear"}}, "architecture"),
        (SPEC | {"repetitions": 0}, "repetitions"),
        (SPEC | {"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_study_is_one_line(spec, message):
    with pytest.raises(flatmin.SettingError, match=message) as error:
        flatmin.Study(spec)
    assert "\n" not in str(error.value)


def test_a_study_from_a_path_and_from_settings(folder, records):
    by_path, by_name = flatmin.Study(folder / "small.toml"), flatmin.Study(**SPEC)
    assert by_path.canonical() == by_name.canonical() == flatmin.Study(SPEC).canonical()


def test_the_hessian_for_scipy():
    """Against SciPy's own eigenvalues of the matrix of second differences of the risk."""
    from scipy.sparse.linalg import eigsh

    rows = flatmin.gaussian_samples(n=20, d=3, seed=2)
    network = flatmin.Architecture.mlp(3, 2, activation="tanh")
    weights = flatmin.initialise(network, "gaussian", 0.7, 0, networks=1)
    operator = flatmin.hessian(rows, weights)

    def risk(flat: Any) -> Any:
        first, second = network.split(flat)
        return np.mean((rows.y - (np.tanh(rows.X @ first.T) @ second.T)[:, 0]) ** 2)

    h, flat = 1e-4, weights.flat()[0]
    steps = h * np.eye(len(flat))
    expected = [
        [
            (risk(flat + u + v) - risk(flat + u - v) - risk(flat - u + v) + risk(flat - u - v))
            / (4 * h * h)
            for u in steps
        ]
        for v in steps
    ]
    dense = np.stack([operator @ unit for unit in np.eye(len(flat))])
    # Second differences are off by h^2 times fourth derivatives and by rounding over h^2.
    np.testing.assert_allclose(dense, expected, atol=1e-6)
    (largest,) = eigsh(operator.to_scipy(), k=1, which="LA", return_eigenvectors=False)
    assert largest == pytest.approx(flatmin.sharpness(rows, weights)[0].value, rel=1e-9)
    several = flatmin.initialise(network, "gaussian", 0.7, 0, networks=2)
    with pytest.raises(flatmin.SettingError, match="networks must be at most 1"):
        flatmin.hessian(rows, several)


@pytest.mark.parametrize(("text", "share"), [("critical", 1.0), ("0.5critical", 0.5)])
def test_a_rate_as_people_write_it(text, share):
    data = flatmin.gaussian_samples(seed=0).regression()
    network = flatmin.Architecture.mlp(5, 3)
    least = flatmin.minimal_sharpness(data, 3).exact
    assert flatmin.train(data, network, learning_rate=text, steps=5).edge == pytest.approx(
        least / share
    )
    method = flatmin.HeavyBall(learning_rate=text, momentum=0.5)
    # The critical rate of heavy ball is 2 (1 + beta)/S_min.
    assert method.resolved(data, network).learning_rate == pytest.approx(share * 3.0 / least)
    start = flatmin.initialise(network, "gaussian", 0.3, 0, networks=2)
    resolved = flatmin.GradientDescent(learning_rate=share * 2.0 / least)
    one, other = (m.run(data, start, steps=20) for m in (flatmin.GradientDescent(text), resolved))
    np.testing.assert_array_equal(one.ensemble.flat(), other.ensemble.flat())


@pytest.mark.parametrize("wrong", ["fast", "-1critical", "criticality", 0.0, float("nan"), None])
def test_a_rate_that_is_none(wrong):
    with pytest.raises(flatmin.SettingError, match="learning_rate must be a positive number"):
        check_rate(wrong)


def test_the_trace_of_several_networks_names_them():
    data = flatmin.gaussian_samples(seed=0).regression()
    start = flatmin.initialise(flatmin.Architecture.mlp(5, 2), "gaussian", 0.3, 0, networks=3)
    found = flatmin.descend(data, start, 0.05, 40, recording=flatmin.Recording(10))
    frame = found.trace
    assert frame.columns[0] == "network"
    assert frame.groupby("network")["step"].apply(list).tolist() == [[0, 10, 20, 30, 40]] * 3
    for network, part in frame.groupby("network"):
        np.testing.assert_array_equal(
            part["distance"], found.recorded.values["distance"][:, network]
        )
    with pytest.raises(flatmin.SettingError, match="nothing was recorded"):
        _ = flatmin.descend(data, start, 0.05, 40).trace


@pytest.mark.parametrize("wanted", [True, False, None])
def test_a_bar_needs_a_terminal(wanted, capsys):
    flatmin.train_network(depth=2, learning_rate=0.05, steps=50, progress=wanted)
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_at_a_terminal(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    flatmin.train_network(depth=2, learning_rate=0.05, steps=50, progress=True)
    assert capsys.readouterr().out == ""
    assert "descent" in terminal.getvalue()


def test_progress_as_a_function():
    told: list[int] = []
    flatmin.train_network(depth=2, learning_rate=1e-4, steps=50, progress=told.append)
    assert sum(told) == 50
