"""`flatmin study` as it is called: new, check, run, show, export, plot."""

from __future__ import annotations

import json
import re
import sys

import pandas as pd
import pytest

from flatmin.cli import main
from flatmin.study.estimate import estimate
from flatmin.study.spec import Study, parse_spec
from processes import run
from study_runs import command

SMALL = """\
name = "small"
[problem]
paper = "linear"
[architecture]
depth = 4
[grid]
scale = [0.3, 0.5]
[[grid.zip]]
learning_rate = [0.05, 0.5]
steps = [500, 200]
repetitions = [6, 4]
[record]
every = 100
quantities = ["distance", "theta"]
"""


def call(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["flatmin", "study", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    return stop.value.code, out, err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished study's folder."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "small.toml").write_text(SMALL)
    code, _, err = run(command("study", "run", folder / "small.toml", "--out", folder / "out"))
    assert (code, err) == (0, "")
    return folder / "out"


def test_new_writes_a_study_that_can_be_run(monkeypatch, capsys, tmp_path):
    path = tmp_path / "sub" / "my.toml"
    code, out, err = call(monkeypatch, capsys, "new", path)
    assert (code, err) == (0, "")
    assert "flatmin study run" in out
    study = Study(path)
    assert study.name == "scales"
    before = path.read_text()
    code, _, err = call(monkeypatch, capsys, "new", path)
    assert code == 2
    assert "is there already" in err
    assert path.read_text() == before


def test_the_starting_file_is_ten_to_thirty_seconds_of_work(tmp_path):
    from flatmin.study.plan import plan
    from flatmin.study.spec import STARTER

    # At most 10 s of two cores at the speed SHARD_FLOPS is set for, if no run ended early:
    # most of it is fixed cost per run. Measured: 10 to 12 s on two cores.
    seconds = sum(shard.cost for shard in plan(parse_spec(STARTER))) / 14e9 / 2
    assert 10 <= seconds <= 30


def test_check_tells_the_size_without_running(monkeypatch, capsys, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    code, out, err = call(monkeypatch, capsys, "check", path, "--json", "--threads", "2")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["runs"] == 20
    assert found["network_steps"] == 2 * (6 * 500 + 4 * 200)
    assert found["threads"] == 2
    assert 0 < found["seconds"] < 60
    assert 2**20 < found["memory_bytes"] < 2**33
    assert 1000 < found["disk_bytes"] < 10**6
    assert list(tmp_path.iterdir()) == [path]
    code, out, _ = call(monkeypatch, capsys, "check", path)
    assert code == 0
    assert "Network steps, at most" in out


def test_the_estimate_grows_with_the_study():
    few = estimate(parse_spec(SMALL), threads=1)
    many = estimate(parse_spec(SMALL.replace("[6, 4]", "[6000, 4000]")), threads=1)
    assert many.runs == 1000 * few.runs
    assert many.seconds > 100 * few.seconds
    assert many.disk_bytes > 100 * few.disk_bytes


@pytest.mark.parametrize(
    "change",
    [
        ("learning_rate = [0.05, 0.5]\nsteps = [500, 200]", "steps = [500, 200]"),
        ("depth = 4", 'depth = 4\nactivation = "tanh"'),
    ],
)
def test_the_estimate_of_flow_and_nonlinear_networks(change):
    text = SMALL.replace(*change).replace('"theta"', '"sharpness"')
    if "learning_rate" not in text:
        text = text.replace("[grid]\n", '[method]\nname = "flow"\n[grid]\n')
    assert estimate(parse_spec(text), threads=1).seconds > 0


def test_check_refuses_in_one_line(monkeypatch, capsys, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(SMALL.replace("depth", "dept"))
    code, out, err = call(monkeypatch, capsys, "check", path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "architecture.dept is not a known key; did you mean 'depth'?" in err


def test_show(monkeypatch, capsys, finished):
    code, out, err = call(monkeypatch, capsys, "show", finished, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["counts"]["runs"] == 20
    assert len(found["points"]) == 4
    first = found["points"][0]
    assert (first["scale"], first["learning_rate"]) == (0.3, 0.05)
    assert first["counts"]["runs"] == 6
    assert first["sharpness"]["low"] <= first["sharpness"]["value"] <= first["sharpness"]["high"]
    code, out, _ = call(monkeypatch, capsys, "show", finished)
    assert code == 0
    assert "edge of stability" in out


@pytest.mark.parametrize("width", [50, 80, 200])
def test_show_cuts_no_number(monkeypatch, capsys, finished, width):
    found = json.loads(call(monkeypatch, capsys, "show", finished, "--json")[1])
    piped = call(monkeypatch, capsys, "show", finished)[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    out = re.sub(r"\x1b\[[\d;]*m", "", call(monkeypatch, capsys, "show", finished)[1])
    for point in found["points"]:
        for name in ("sharpness", "distance"):
            value = point[name]["value"]
            shown = "-" if value is None else f"{value:.3g}"
            assert shown in out.split()
            assert shown in piped.split()
    assert "…" not in out + piped
    assert "95 % band" in piped
    assert ("left out for want of room: 95 % band" in out) == (width < 200)
    if width > 50:
        assert max(map(len, out.splitlines())) <= width


def test_export(monkeypatch, capsys, finished, tmp_path):
    for name in ("t.csv", "t.parquet"):
        code, out, err = call(monkeypatch, capsys, "export", finished, tmp_path / name)
        assert (code, err) == (0, "")
        assert "20 rows" in out
    rows = pd.read_parquet(tmp_path / "t.parquet")
    flat = pd.read_csv(tmp_path / "t.csv")
    assert list(rows.run) == list(flat.run) == list(range(20))
    assert (flat.learning_rate == rows.learning_rate).all()
    pd.testing.assert_series_equal(flat.sharpness, rows.sharpness, rtol=1e-15)
    assert {"spectral_norm_4", "alignment_3"} <= set(flat)
    code, _, _ = call(monkeypatch, capsys, "export", finished, tmp_path / "x.csv", "--traces")
    traces = pd.read_csv(tmp_path / "x.csv")
    assert code == 0
    assert {"run", "step", "distance", "theta_4"} <= set(traces)
    code, _, err = call(monkeypatch, capsys, "export", finished, tmp_path / "t.xlsx")
    assert code == 2
    assert "must end in .csv or .parquet" in err


@pytest.mark.parametrize("y", ["sharpness", "distance", "diverged", "test_risk"])
def test_plot(monkeypatch, capsys, finished, tmp_path, y):
    path = tmp_path / "figure.svg"
    options = ("--x", "scale", "--y", y, "--by", "learning_rate", "--out", path)
    code, out, err = call(monkeypatch, capsys, "plot", finished, *options)
    assert (code, err) == (0, "")
    assert str(path) in out
    assert path.stat().st_size > 1000


def test_plot_says_what_it_does_with_axes_not_named(monkeypatch, capsys, finished, tmp_path):
    options = ("--y", "diverged", "--out", tmp_path / "f.svg")
    assert "pooled" not in call(monkeypatch, capsys, "plot", finished, "--x", "scale", *options)[1]
    out = call(monkeypatch, capsys, "plot", finished, "--x", "depth", *options)[1]
    assert "pooled at every point: scale (2 values), learning_rate (2 values)" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--x", "scal"), "--x must be one of .*did you mean 'scale'"),
        (("--y", "sharp"), "--y must be one of .*did you mean 'sharpness'"),
        (("--y", "time"), "--y time: no run of this study has it"),
        (("--out", "figure.doc"), "--out must end in .png"),
    ],
)
def test_plot_refuses_what_is_not_there(monkeypatch, capsys, finished, tmp_path, options, message):
    given = options if "--out" in options else (*options, "--out", tmp_path / "f.png")
    code, _, err = call(monkeypatch, capsys, "plot", finished, *given)
    assert code == 2
    assert re.search(message, err), err


@pytest.mark.parametrize("command", [("show",), ("plot", "--out", "f.png"), ("export", "o.csv")])
def test_a_folder_without_a_study(monkeypatch, capsys, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    name, *rest = command
    code, _, err = call(monkeypatch, capsys, name, tmp_path / "none", *rest)
    assert code == 2
    assert err.count("\n") == 1
    assert "none" in err


def test_help_imports_no_numpy():
    code = (
        "import sys; sys.argv = ['flatmin', 'study', '--help']\n"
        "from flatmin.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'numpy', 'pyarrow', 'pandas', 'numba'} & set(sys.modules)"
    )
    returned, out, err = run([sys.executable, "-c", code])
    assert (returned, err) == (0, "")
    for name in ("new", "check", "run", "show", "export", "plot"):
        assert name in out
