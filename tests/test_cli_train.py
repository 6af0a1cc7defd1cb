"""`flatmin train`, `flatmin predict --measure` and `flatmin bench` as they are called."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import flatmin
from commands import call
from flatmin.curvature import sharpness
from flatmin.data.sets import paper_samples
from flatmin.dynamics import training
from flatmin.dynamics.advice import advise
from flatmin.network.architecture import Architecture
from flatmin.theory.minimal_sharpness import critical_learning_rate, minimal_sharpness
from processes import run, started


def test_json_without_a_file_uses_the_papers_data(monkeypatch, capsys):
    code, out, err = call(
        monkeypatch, capsys, "train", "--learning-rate", "0.05", "--steps", "4000", "--json"
    )
    assert (code, err) == (0, "")
    result = json.loads(out)
    data = paper_samples().regression()
    assert (result["state"], result["learned"], result["learned_at"]) == ("settled", True, 1e-3)
    assert result["init"] == "pytorch"
    assert result["edge_share"] == pytest.approx(result["sharpness"]["value"] / result["edge"])
    assert result["minimal_sharpness"] == pytest.approx(minimal_sharpness(data, 10).exact)
    assert result["edge"] == pytest.approx(40.0)
    assert result["distance"] < 1e-12
    assert result["risk"] == pytest.approx(result["risk_min"])
    assert result["seed"] == 0
    for name in ("sharpness", "initial_sharpness"):
        assert {"value", "residual", "method", "converged"} <= set(result[name])
        assert result[name]["converged"]
    assert result["minimal_sharpness"] <= result["sharpness"]["value"] <= result["edge"]


def test_out_writes_what_can_be_read_without_flatmin(monkeypatch, capsys, tmp_path):
    out_dir = tmp_path / "run"
    code, out, _ = call(
        monkeypatch,
        capsys,
        *("train", "--learning-rate", "0.1", "--steps", "450", "--record-every", "5"),
        *("--init", "gaussian", "--scale", "0.35", "--seed", "3", "--out", out_dir),
    )
    assert code == 0
    assert "2 / learning rate" in out
    names = {path.name for path in out_dir.iterdir()}
    assert names == {
        *("summary.json", "trace.parquet", "problem.npz", "initial.npz", "final.npz"),
        "training.png",
    }
    trace = pd.read_parquet(out_dir / "trace.parquet")
    assert list(trace["step"][:3]) == [0, 5, 10]
    assert {"excess_risk", "distance", "sharpness", "sharpness_residual", "spectral_norm_1"} <= set(
        trace
    )
    summary = json.loads((out_dir / "summary.json").read_text())
    with np.load(out_dir / "final.npz") as final:
        layers = [final[f"W{k}"] for k in range(1, 11)]
        assert set(final) == {*(f"W{k}" for k in range(1, 11)), "p", "Sigma", "w_star"}
    again = sharpness(paper_samples(), layers)
    assert again.value == pytest.approx(summary["sharpness"]["value"], rel=1e-8)


def test_flow_and_residual_and_a_file(monkeypatch, capsys, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((30, 4)), columns=["a", "b", "c", "y"])
    path = tmp_path / "data.csv"
    frame.to_csv(path, index=False)
    code, out, _ = call(
        monkeypatch,
        capsys,
        *("train", path, "--target", "y", "--depth", "6", "--init", "residual"),
        *("--scale", "0.25", "--flow", "--json"),
    )
    assert code == 0
    result = json.loads(out)
    assert result["state"] == "settled"
    assert result["edge"] is None
    assert result["invariant_drift"] < 1e-7
    assert result["widths"] == [3] * 6


@pytest.mark.parametrize("activation", ["gelu-tanh", "tanh"])
def test_other_activations(monkeypatch, capsys, activation):
    code, out, _ = call(
        monkeypatch,
        capsys,
        *("train", "--depth", "3", "--activation", activation, "--learning-rate", "0.02"),
        *("--steps", "300"),
    )
    assert code == 0
    assert "S_min is that of linear networks" in out


def test_multiples_of_the_critical_rate(monkeypatch, capsys):
    rates = {}
    for text in ("critical", "0.5critical"):
        code, out, _ = call(
            monkeypatch,
            capsys,
            *("train", "--depth", "5", "--learning-rate", text, "--steps", "200", "--json"),
        )
        assert code == 0
        rates[text] = json.loads(out)["learning_rate"]
    data = paper_samples().regression()
    assert rates["critical"] == pytest.approx(critical_learning_rate(data, 5))
    assert rates["0.5critical"] == pytest.approx(0.5 * rates["critical"])


@pytest.mark.parametrize("steps", [300, 4000], ids=["on the way", "settled"])
def test_the_edge_of_stability_is_named(monkeypatch, capsys, steps):
    code, out, _ = call(
        monkeypatch,
        capsys,
        *("train", "--learning-rate", "0.07", "--init", "gaussian", "--scale", "0.45"),
        *("--steps", str(steps), "--seed", "1"),
    )
    assert code == 0
    assert "Edge of stability: sharpness is" in " ".join(out.split())


def test_divergence_is_a_result(monkeypatch, capsys):
    code, out, _ = call(
        monkeypatch, capsys, "train", "--learning-rate", "50", "--steps", "100", "--json"
    )
    result = json.loads(out)
    assert code == 0
    assert result["state"] == "diverged"
    assert result["risk"] is None
    assert "Diverged at step" in result["interpretation"]


def test_without_a_rate_it_takes_the_advice(monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, "train", "--depth", "3", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["learned"]
    found = advise(paper_samples(), Architecture.mlp(5, 3))
    assert result["learning_rate"] == found.learning_rate
    code, out, _ = call(monkeypatch, capsys, "train", "--depth", "3")
    assert f"Use learning rate {found.learning_rate:.4g}" in out


def test_a_rate_that_cannot_be_found_is_a_clear_line(monkeypatch, capsys, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3)) * [1e6, 1.0, 1e-6]
    path = tmp_path / "data.npz"
    np.savez(path, X=X, y=X @ [0.0, 1.0, 1e6])
    code, out, err = call(monkeypatch, capsys, "train", path, "--target", "y")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "No rate can be advised" in err


def test_dead_units_are_stalled_and_have_a_sharpness(monkeypatch, capsys):
    """Thrown to enormous weights where every GELU is at rest: no gradient, no curvature."""
    code, out, _ = call(
        monkeypatch,
        capsys,
        *("train", "--depth", "3", "--activation", "gelu-tanh", "--learning-rate", "3"),
        *("--steps", "300", "--json"),
    )
    result = json.loads(out)
    assert (code, result["state"], result["learned"]) == (0, "stalled", False)
    assert result["sharpness"]["value"] == 0.0


BAD = [
    (
        ["train", "--flow", "--learning-rate", "0.1"],
        "--learning-rate and --flow exclude each other",
    ),
    (["train", "--learning-rate", "0"], "--learning-rate must be a positive number"),
    (["train", "--learning-rate", "-0.1"], "--learning-rate must be a positive number"),
    (["train", "--learning-rate", "fast"], "--learning-rate must be a positive number"),
    (["train", "--learning-rate", "nan"], "--learning-rate must be a positive number"),
    (["train", "--learning-rate", "xcritical"], "--learning-rate must be a positive"),
    (["train", "--learning-rate", "0.1", "--steps", "0"], "--steps must be a whole number"),
    (["train", "--learning-rate", "0.1", "--steps", "1e15"], "steps must be at most"),
    (["train", "--learning-rate", "0.1", "--width", "0"], "--width must be a whole number"),
    (["train", "--learning-rate", "0.1", "--depth", "0"], "--depth must be"),
    (["train", "--learning-rate", "0.1", "--scale", "-1"], "scale must be a number of at least 0"),
    (["train", "--learning-rate", "0.1", "--init", "xavier"], "init must be one of"),
    (
        ["train", "--learning-rate", "0.1", "--init", "residual", "--width", "7"],
        "residual initialisation needs every layer to be 5 x 5",
    ),
    (["train", "--learning-rate", "0.1", "--activation", "bump"], "activation must be one of"),
    (["train", "--flow", "--activation", "tanh"], "linear networks with one output"),
    (["train", "--learned-at", "1"], "--learned-at must lie between 0 and 1"),
    (["train", "--learned-at", "some"], "--learned-at must be a number"),
    (["train", "--learning-rate", "0.1", "--seed", "-1"], "--seed must be a whole number"),
    (["train", "--learning-rate", "0.1", "--target", "y"], "need a FILE"),
    (["train", "/nowhere.csv", "--learning-rate", "0.1"], "--target is missing"),
    (["train", "--learning-rate", "0.1", "--record-every", "0"], "--record-every must be"),
    (
        ["train", "--learning-rate", "0.1", "--steps", "1e12", "--record-every", "1"],
        "GiB of memory",
    ),
    (["train", "--learning-rate", "0.1", "--steps", "5", "--out", "/dev/null/x"], "cannot be made"),
    (["train", "--learning-rate", "0.1", "--out", ""], "--out must name a place to write to"),
    (
        ["train", "--learning-rate", "0.1", "--central", "--activation", "tanh"],
        "flatmin: the central flow is for linear networks",
    ),
    (
        ["train", "--learning-rate", "0.1", "--init", "minimiser"],
        "--scale is the sharpness with init 'minimiser', at least S_min = ",
    ),
    (["bench", "gd-linear-d6"], "did you mean 'gd-linear-d5'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, capsys, arguments, message):
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("flatmin: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("seconds", "compiled"),
    [
        pytest.param(5.0, True, id="while training"),
        # The compiler may swallow the first interrupt; it comes again.
        pytest.param(2.5, False, id="while compiling"),
    ],
)
def test_ctrl_c_stops(tmp_path, seconds, compiled):
    command = Path(sys.executable).with_name("flatmin")
    arguments = ["train", "--learning-rate", "1e-9", "--steps", "1e9", "--record-every", "1e8"]
    environment = os.environ if compiled else os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    with started([command, *arguments], stderr=subprocess.PIPE, env=environment) as process:
        time.sleep(seconds)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        # It takes a second; left alone, the run takes many minutes.
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.endswith("flatmin: stopped\n")


def test_a_timer_of_the_caller_is_left_alone(monkeypatch, capsys):
    before = signal.setitimer(signal.ITIMER_REAL, 1000.0)
    try:
        call(monkeypatch, capsys, "--version")
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


@pytest.mark.parametrize("flow", [False, True])
def test_wide_layers_are_measured_if_asked_for(flow, monkeypatch):
    """Singular values of layers of 1000 units at every entry once took longer than the run."""
    monkeypatch.setattr(training, "LAYER_WORK", 0.0)
    rate = {} if flow else {"learning_rate": 0.02}
    run = flatmin.train_network(depth=3, flow=flow, steps=100, **rate)
    assert len(run.trace) <= training.WIDE_ENTRIES + 2
    assert "sharpness" in run.trace
    assert "theta_1" not in run.trace
    assert "layers: not measured along the run" in str(run).replace("\n", " ")
    asked = flatmin.train_network(depth=3, flow=flow, steps=100, record_every=10, **rate)
    assert "theta_1" in asked.trace
    assert "layers: not measured" not in str(asked)


def test_kernels_that_are_kept_load_neither_the_compiler_nor_scipy():
    """Loading both is what a second call waited for; a kernel compiled after such a load works."""
    code = (
        "import sys, contextlib\n"
        "import numpy as np\n"
        "from flatmin.cli import main\n"
        "sys.argv = ['flatmin', 'train', '--json']\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main()\n"
        "heavy = {'scipy.linalg', 'scipy.special', 'pandas', 'numba.np.arraymath'}\n"
        "heavy &= set(sys.modules)\n"
        "from numba import njit\n"
        "found = njit(lambda a: np.sort(a)[::2].sum())(np.array([5.0, 1.0, 3.0]))\n"
        "print(sorted(heavy), found, file=sys.stderr)\n"
    )
    said = [run([sys.executable, "-c", code]) for _ in range(2)]  # the first may compile
    assert [code for code, _, _ in said] == [0, 0]
    assert said[0][1] == said[1][1]
    assert said[1][2] == "[] 6.0\n"


def test_the_table_is_not_written_over(monkeypatch, capsys, tmp_path):
    """Its files have names that a table may have, such as that of an earlier run."""
    samples = flatmin.gaussian_samples(20, 3, seed=0)
    (tmp_path / "run").mkdir()
    for name in ("problem.npz", "trace.parquet", "atlas.parquet"):
        table = tmp_path / "run" / name
        if table.suffix == ".npz":
            np.savez(table, X=samples.X, y=samples.y)
        else:
            pd.DataFrame({"a": samples.X[:, 0], "y": samples.y}).to_parquet(table)
        content = table.read_bytes()
        command, options = "train", ("--learning-rate", "0.1", "--steps", "5")
        if name == "atlas.parquet":
            command, options = "atlas", ("--depth", "2", "--rates", "1.1", "--steps", "5")
        place = ("--target", "y", "--out", tmp_path / "run" / ".." / "run")
        code, _, err = call(monkeypatch, capsys, command, table, *options, *place)
        assert code == 2
        assert f"--out would write over the table {str(table)!r}" in err
        assert table.read_bytes() == content


@pytest.mark.parametrize("module", ["typer", "flatmin.cli.study", "flatmin.cli.surroundings"])
def test_an_interrupt_while_the_command_is_imported_is_one_line(module):
    """On a busy machine that takes seconds, and Ctrl-C comes early where a mistake is seen."""
    code = (
        "import os, signal, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "sys.argv = ['flatmin', '--version']\n"
        "from flatmin.cli import main\n"
        "main()\n"
    )
    assert run([sys.executable, "-c", code]) == (130, "", "flatmin: stopped\n")
