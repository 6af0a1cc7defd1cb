"""`flatmin predict` as a person or a script calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import call
from flatmin import __version__
from flatmin.cli import main
from flatmin.data.generators import gaussian_samples
from flatmin.theory.flattest_depth import flattest_depth
from flatmin.theory.minimal_sharpness import minimal_sharpness, vanishing_scale_limit
from processes import run


@pytest.fixture
def table(tmp_path: Path) -> Path:
    samples = gaussian_samples(seed=3)
    path = tmp_path / "data.csv"
    names = ",".join([*samples.feature_names, "y"])
    np.savetxt(
        path,
        np.column_stack([samples.X, samples.y]),
        delimiter=",",
        header=names,
        comments="",
        fmt="%.17g",
    )
    return path


def test_json(monkeypatch, capsys, table):
    code, out, err = call(
        monkeypatch, capsys, "predict", table, "--target", "y", "--depth", "10", "--json"
    )
    assert (code, err) == (0, "")
    result = json.loads(out)
    data = gaussian_samples(seed=3).regression()
    exact = minimal_sharpness(data, 10)
    assert result["minimal_sharpness"]["exact"] == pytest.approx(exact.exact, rel=1e-12)
    assert result["small_init_sharpness"] == pytest.approx(vanishing_scale_limit(data, 10))
    assert result["critical_learning_rate"]["exact"] == pytest.approx(2 / exact.exact)
    assert result["critical_learning_rate"]["paper"] == pytest.approx(2 / exact.lower)
    assert {
        "n",
        "d",
        "rank",
        "w_star_norm",
        "a",
        "smallest_eigenvalue",
        "largest_eigenvalue",
        "condition_number",
        "risk_min",
        "depth",
        "output_norm",
        "notes",
    } <= set(result)
    assert (result["n"], result["d"], result["depth"]) == (50, 5, 10)
    advice = result["advice"]
    assert set(advice) == {
        *("learning_rate", "init", "scale", "width", "steps", "learned_share"),
        *("learned_share_low", "runs", "seeds", "reason"),
    }
    assert (advice["init"], advice["scale"], advice["width"]) == ("pytorch", 1.0, 5)
    assert 0 < advice["learning_rate"] < 2 / exact.exact
    learned = round(advice["learned_share"] * advice["runs"])
    assert f"{learned} of {advice['runs']} fresh runs" in advice["reason"]
    assert result["learned_at"] == 1e-3


def test_without_measuring_no_rate_is_named(monkeypatch, capsys, table):
    arguments = ("predict", table, "--target", "y", "--depth", "10", "--no-measure")
    code, out, _ = call(monkeypatch, capsys, *arguments, "--json")
    assert code == 0
    assert json.loads(out)["advice"] is None
    code, out, _ = call(monkeypatch, capsys, *arguments)
    assert "Use learning rate" not in out
    assert "for example" not in out


def test_measure_gives_the_whole_curve_for_every_depth(monkeypatch, capsys, table, tmp_path):
    figure = tmp_path / "curve.png"
    arguments = ("predict", table, "--target", "y", "--depths", "2,4", "--measure", "--runs", "20")
    code, out, _ = call(monkeypatch, capsys, *arguments, "--figure", figure, "--json")
    assert code == 0
    result = json.loads(out)
    assert [one["depth"] for one in result["depths"]] == [2, 4]
    for one in result["depths"]:
        curve = one["rate_curve"]
        ceiling = one["critical_learning_rate"]["exact"]
        assert one["advice"]["learning_rate"] < one["working_learning_rate"] <= 1.01 * ceiling
        rates = [point["learning_rate"] for point in curve["points"]]
        assert rates == sorted(rates)
        assert curve["points"][0]["slow"] == 1.0
        assert curve["points"][-1]["unstable"] == 1.0
    assert figure.read_bytes().startswith(b"\x89PNG")
    code, out, _ = call(monkeypatch, capsys, *arguments)
    for words in ("tested rate", "too slow", "unstable", "median steps", "95 % of runs learn"):
        assert words in " ".join(out.split())


def test_table_and_figure(monkeypatch, capsys, table, tmp_path):
    figure = tmp_path / "new" / "depth.png"
    code, out, _ = call(
        monkeypatch,
        capsys,
        *("predict", table, "--target", "y", "--depth", "10"),
        *("--depths", "2,5,10,20,40", "--figure", figure),
    )
    assert code == 0
    for words in ("S_min, exact", "Critical learning rate", "no factor 1/2", "cannot settle"):
        assert words in " ".join(out.split())
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in figure.parent.iterdir()] == ["depth.png"]


def test_several_targets(monkeypatch, capsys, tmp_path):
    samples = gaussian_samples(20, 3, seed=0, targets=2)
    path = tmp_path / "two.npz"
    np.savez(path, X=samples.X, Y=samples.y)
    code, out, _ = call(
        monkeypatch, capsys, "predict", path, "--target", "Y", "--depth", "4", "--json"
    )
    result = json.loads(out)
    assert code == 0
    least = minimal_sharpness(samples.regression(), 4).exact
    assert result["targets"] == 2
    assert result["minimal_sharpness"]["exact"] == pytest.approx(least, rel=1e-12)
    assert result["critical_learning_rate"] == {"exact": pytest.approx(2 / least), "paper": None}
    assert result["flattest_depth"] == flattest_depth(samples.regression())
    assert any("hidden layers have at least 2 units" in note for note in result["notes"])
    code, out, _ = call(monkeypatch, capsys, "predict", path, "--target", "Y", "--depth", "4")
    assert code == 0
    assert f"{least:.6g}" in out
    options = ("--target", "Y", "--depth", "4", "--output-norm", "2")
    code, _, err = call(monkeypatch, capsys, "predict", path, *options)
    assert code == 2
    assert "|p| must be 1 with 2 targets" in err


BAD = [
    (["predict", "{table}", "--target", "y", "--depth", "0"], "--depth must be"),
    (["predict", "{table}", "--target", "y", "--depth", "-3"], "--depth must be"),
    (["predict", "{table}", "--target", "y", "--depth", "2.5"], "--depth must be"),
    (["predict", "{table}", "--target", "y", "--depth", "ten"], "--depth must be a number"),
    (["predict", "{table}", "--target", "y", "--depth", "99999999"], "at most"),
    (["predict", "{table}", "--target", "y", "--depth", "nan"], "--depth must be"),
    (["predict", "{table}", "--target", "y"], "--depth is missing"),
    (["predict", "{table}", "--depth", "3"], "--target"),
    (["predict", "{table}", "--target", "z", "--depth", "3"], "'z'"),
    (["predict", "{table}", "--target", "y", "--depth", "3", "--output-norm", "0"], "positive"),
    (["predict", "{table}", "--target", "y", "--depth", "3", "--output-norm", "x"], "a number"),
    (["predict", "{table}", "--target", "y", "--depth", "3", "--output-norm", "inf"], "a number"),
    (["predict", "{table}", "--target", "y", "--depths", "2,a"], "--depths must be a number"),
    (["predict", "{table}", "--target", "y", "--depths", ","], "--depths must list"),
    (
        ["predict", "{table}", "--target", "y", "--depth", "3", "--figure", "x.doc"],
        "--figure must end in",
    ),
    (
        ["predict", "{table}", "--target", "y", "--depth", "3", "--figure", "{table}/x.png"],
        "cannot be made",
    ),
    (["predict", "{table}", "--target", "y", "--depth", "3", "--colour"], "--colour"),
    (["predict", "{table}", "--target", "y", "--depth", "3", "--init", "he"], "init must be one"),
    (["predict", "{table}", "--target", "y", "--depth", "3", "--effort", "0"], "--effort must be"),
    (["predict", "{table}", "--target", "y", "--depth", "3", "--learned-at", "2"], "between 0"),
    (["predict", "{table}", "--target", "y", "--depth", "3", "--width", "0"], "--width must be"),
    (
        ["predict", "{table}", "--target", "y", "--depth", "3", "--certificate", "{table}"],
        "--certificate would write over the table",
    ),
    (
        ["predict", "{table}", "--target", "y", "--depth", "3", "--certificate", ""],
        "--certificate must name a place",
    ),
    (["predict", "/nowhere/x.csv", "--target", "y", "--depth", "3"], "/nowhere/x.csv"),
    (["predict"], "FILE"),
    (["forecast"], "forecast"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, capsys, table, arguments, message):
    arguments = [argument.format(table=table) for argument in arguments]
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("flatmin: ")
    assert err.count("\n") == 1
    assert message in err


def test_a_bug_keeps_its_traceback(monkeypatch, table):
    import flatmin.dynamics.forecast

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(flatmin.dynamics.forecast, "predict", broken)
    monkeypatch.setattr(
        sys, "argv", ["flatmin", "predict", str(table), "--target", "y", "--depth", "3"]
    )
    with pytest.raises(ZeroDivisionError):
        main()


def test_the_installed_command_answers_without_heavy_imports():
    command = Path(sys.executable).with_name("flatmin")
    for words in ([command], [sys.executable, "-m", "flatmin"]):
        assert run([*words, "--version"]) == (0, f"flatmin {__version__}\n", "")
    code = (
        "import sys; sys.argv = ['flatmin', '--help']\n"
        "from flatmin.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'scipy', 'numba', 'pyarrow', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    returned, out, err = run([sys.executable, "-c", code])
    assert (returned, err) == (0, "")
    assert "predict" in out
