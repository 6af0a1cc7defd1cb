"""Rows of a shard: against direct calls of the engine, and the same bytes however work is cut."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import oracles
from flatmin.core.errors import SettingError
from flatmin.curvature import sharpness
from flatmin.data.generators import gaussian_split
from flatmin.data.sets import paper_samples
from flatmin.dynamics import measures
from flatmin.dynamics.descent import descend
from flatmin.dynamics.flow import flow
from flatmin.dynamics.measures import Measure
from flatmin.dynamics.recording import Recording
from flatmin.network.architecture import Architecture, residual_output_vector
from flatmin.network.initialisation import initialise
from flatmin.study import plan as planning
from flatmin.study.execute import run_shard
from flatmin.study.export import flat_frame
from flatmin.study.inputs import data_of
from flatmin.study.plan import plan
from flatmin.study.runner import run_study
from flatmin.study.schema import ROWS_SCHEMA, TRACES_SCHEMA
from flatmin.study.spec import parse_spec
from flatmin.study.store import Store
from flatmin.study.summary import facets, frame, mean, overview, points
from flatmin.theory.minimal_sharpness import critical_learning_rate, minimal_sharpness

DESCENT = """\
seed = 3
[problem]
paper = "linear"
[architecture]
depth = 5
[grid]
scale = [0.3, 0.5]
[[grid.zip]]
learning_rate = [0.05, 0.1, 0.5]
steps = [600, 400, 300]
repetitions = [9, 7, 5]
[record]
every = 50
quantities = ["excess_risk", "distance", "sharpness", "alignment"]
"""
DATASETS = """\
datasets = 3
repetitions = 5
[problem]
generator = "gaussian"
n = 30
d = 4
[architecture]
kind = "residual"
[initialisation]
name = "residual"
scale = 0.25
[method]
learning_rate_unit = "critical"
steps = 20
[grid]
depth = [3, 6]
learning_rate = [0.5, 1.1]
"""
FLOW = """\
repetitions = 6
[problem]
generator = "spectrum"
condition_number = 20
[architecture]
depth = 3
[initialisation]
scale = 0.4
[method]
name = "flow"
[record]
every = 20
quantities = ["excess_risk", "sharpness", "drift"]
"""
NONLINEAR = """\
repetitions = 5
[problem]
paper = "nonlinear"
[architecture]
depth = 3
activation = "gelu-tanh"
[initialisation]
scale = 0.6
[method]
steps = 120
[grid]
learning_rate = [0.05, 5.0]
[record]
every = 40
quantities = ["excess_risk", "sharpness"]
"""
# Not recorded, so not run one by one; of 30 and of 180 weights, which are measured in two ways.
SHALLOW, DEEP = (
    NONLINEAR[: NONLINEAR.index("[record]")].replace("depth = 3", f"depth = {depth}")
    for depth in (2, 8)
)
WIDE = """\
repetitions = 3
[problem]
generator = "gaussian"
n = 60
d = 40
[architecture]
depth = 7
[initialisation]
scale = 0.15
[method]
steps = 20
learning_rate = 1e-3
"""


def tables(text, flops=None, threads=1):
    study = parse_spec(text)
    results = [run_shard(study, shard, threads) for shard in plan(study, flops)]
    rows = pa.concat_tables([result.rows for result in results]).sort_by("run")
    traces = None
    if results[0].traces is not None:
        order = [("run", "ascending"), ("step", "ascending")]
        traces = pa.concat_tables([result.traces for result in results]).sort_by(order)
    return rows, traces, len(results)


def bits(table):
    """The content to the last bit, whatever the chunks."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("text", [DESCENT, DATASETS, FLOW, NONLINEAR, SHALLOW, DEEP, WIDE])
def test_the_same_bytes_for_any_threads_and_shard_size(text, monkeypatch):
    rows, traces, _ = tables(text)
    monkeypatch.setattr(planning, "LEAST_RUNS", 1)
    pieces = set()
    for threads, flops in ((2, 3e10), (3, 2e7), (1, 1.0)):
        again, traces_again, count = tables(text, flops, threads)
        pieces.add(count)
        assert bits(again) == bits(rows)
        assert (traces is None) == (traces_again is None)
        assert traces is None or bits(traces_again) == bits(traces)
    assert max(pieces) == len(rows)


def direct(text, **where):
    """The runs at one point, their ensemble drawn as the study does."""
    study = parse_spec(text)
    runs = [
        run
        for shard in plan(study)
        for run in shard.runs
        if all(getattr(run, name) == value for name, value in where.items())
    ]
    return study, sorted(runs, key=lambda run: run.index)


def test_rows_of_descent_are_those_of_the_engine():
    rows = tables(DESCENT)[0].to_pandas()
    study, runs = direct(DESCENT, scale=0.3, learning_rate=0.05)
    data, arch = paper_samples(), Architecture.mlp(5, 5)
    regression = data.regression()
    start = initialise(arch, "gaussian", 0.3, 3, [run.address() for run in runs])
    outcome = descend(regression, start, 0.05, 600)
    part = rows[(rows.scale == 0.3) & (rows.learning_rate == 0.05)]
    assert list(part.run) == [run.index for run in runs]
    assert list(part.repetition) == list(range(9))
    assert list(part.state) == list(outcome.state)
    assert list(part.steps) == list(outcome.steps)
    assert set(part.step_limit) == {600}
    np.testing.assert_array_equal(part.excess_risk, outcome.excess_risk)
    np.testing.assert_array_equal(part.gradient_norm, outcome.gradient_norm)
    np.testing.assert_allclose(part.train_risk, regression.risk_min + outcome.excess_risk)
    for name, ensemble in (("initial_", start), ("", outcome.ensemble)):
        dense = sharpness(regression, ensemble, method="dense")
        np.testing.assert_allclose(part[f"{name}sharpness"], dense.value, rtol=1e-9)
        assert (part[f"{name}sharpness_residual"] <= 1e-8 * part[f"{name}sharpness"]).all()
        assert part[f"{name}sharpness_converged"].all()
        maps = [np.linalg.multi_dot(matrices[::-1]).ravel() for matrices in ensemble]
        # The distance of a run that has arrived is the rounding of its product.
        for found, w, matrices in zip(part[f"{name}distance"], maps, ensemble, strict=True):
            away = np.linalg.norm(w - regression.w_star)
            assert np.sqrt(found) == pytest.approx(
                away, rel=1e-12, abs=oracles.product_rounding(matrices)
            )
    test = paper_samples(test=True)
    risks = [np.mean((test.y - test.X @ w) ** 2) for w in maps]
    np.testing.assert_allclose(part.test_risk, risks, rtol=1e-12)
    least = minimal_sharpness(regression, 5).exact
    np.testing.assert_allclose(part.minimal_sharpness, least)
    np.testing.assert_allclose(part.edge, 40.0)
    np.testing.assert_allclose(part.relative_rate, 0.05 * least / 2)
    assert part.time.isna().all()
    for name in ("spectral_norm", "alignment"):
        expected = getattr(measures, name)(outcome.ensemble.layers())
        np.testing.assert_allclose(np.stack(part[name]), expected, rtol=1e-10)
    # Singular values are computed to some eps |W|; the defect is the sum of small ones squared.
    defect = np.sqrt(measures.rank_one_defect(outcome.ensemble.layers()))
    rounding = 10 * np.finfo(float).eps * np.stack(part.spectral_norm).max()
    found = np.sqrt(np.stack(part.rank_one_defect))
    np.testing.assert_allclose(found, defect, rtol=1e-10, atol=rounding)
    assert study.record.every == 50


def test_a_diverged_run_has_no_final_numbers():
    rows = tables(DESCENT)[0].to_pandas()
    lost = rows[rows.state == "diverged"]
    assert len(lost) >= 5
    final = ("sharpness", "distance", "train_risk", "test_risk", "gradient_norm", "alignment")
    for name in final:
        assert lost[name].isna().all()
    assert lost.initial_sharpness.notna().all()
    assert lost.initial_distance.notna().all()


def test_traces_are_those_of_the_engine():
    rows, traces, _ = tables(DESCENT)
    assert traces.schema.equals(TRACES_SCHEMA, check_metadata=True)
    study, runs = direct(DESCENT, scale=0.5, learning_rate=0.1)
    arch = Architecture.mlp(5, 5)
    start = initialise(arch, "gaussian", 0.5, 3, [run.address() for run in runs])
    recording = Recording(50, study.record.quantities)
    trace = descend(paper_samples().regression(), start, 0.1, 400, recording=recording).recorded
    found = traces.to_pandas()
    for place, run in enumerate(runs):
        part = found[found.run == run.index].reset_index(drop=True)
        expected = trace.frame(place)
        assert list(part.step) == list(expected.step)
        for name in ("excess_risk", "distance", "sharpness", "sharpness_residual"):
            np.testing.assert_array_equal(part[name], expected[name])
        np.testing.assert_array_equal(np.stack(part.alignment)[:, 1], expected.alignment_2)
        assert part.theta.isna().all()
        assert part.time.isna().all()
    assert rows.schema.equals(ROWS_SCHEMA, check_metadata=True)
    assert ROWS_SCHEMA.metadata[b"flatmin_schema_version"] == b"3"


def test_data_sets_and_critical_rates():
    rows = tables(DATASETS)[0].to_pandas()
    assert len(rows) == 3 * 5 * 4
    assert set(rows.relative_rate) == {0.5, 1.1}
    p = residual_output_vector(4, 0)
    for dataset in range(3):
        train, test = gaussian_split(30, 4, 1.0, seed=dataset)
        regression = train.regression()
        rate = 0.5 * critical_learning_rate(regression, 6)
        _, runs = direct(DATASETS, dataset=dataset, depth=6, learning_rate=0.5)
        arch = Architecture.residual(4, 6, p)
        start = initialise(arch, "residual", 0.25, 0, [run.address() for run in runs])
        outcome = descend(regression, start, rate, 20)
        part = rows.iloc[[run.index for run in runs]]
        assert set(part.depth) == {6}
        assert set(part.width) == {4}
        np.testing.assert_allclose(part.learning_rate, rate, rtol=1e-14)
        # Not at the end, where an excess risk is rounding. Here each of 20 steps rounds the product
        # of 6 layers, so its relative error is about 2 * 20 * 6 eps / sqrt(excess) < 1e-9.
        assert outcome.excess_risk.min() > 1e-8
        np.testing.assert_allclose(part.excess_risk, outcome.excess_risk, rtol=1e-8)
        w = [p @ np.linalg.multi_dot(matrices[::-1]) for matrices in outcome.ensemble]
        np.testing.assert_allclose(part.test_risk, [test.risk(one) for one in w], rtol=1e-9)


def test_rows_of_flow():
    rows, traces, _ = tables(FLOW)
    table = rows.to_pandas()
    study, runs = direct(FLOW)
    from flatmin.study.inputs import data_of

    regression = data_of(study, 0).regression
    arch = Architecture.mlp(5, 3)
    start = initialise(arch, "gaussian", 0.4, 0, [run.address() for run in runs])
    outcome = flow(regression, start)
    np.testing.assert_array_equal(table.time, outcome.extras["time"])
    np.testing.assert_array_equal(table.steps, outcome.steps)
    for found, expected, matrices in zip(
        table.distance, outcome.distance, outcome.ensemble, strict=True
    ):
        rounding = oracles.product_rounding(matrices)
        assert np.sqrt(found) == pytest.approx(np.sqrt(expected), rel=1e-12, abs=rounding)
    assert set(table.state) == {"settled"}
    for name in ("learning_rate", "relative_rate", "edge", "test_risk"):
        assert table[name].isna().all()
    part = traces.to_pandas().query("run == 2")
    assert part.time.is_monotonic_increasing
    assert part.excess_risk.iloc[0] > part.excess_risk.iloc[-1]


def test_rows_of_nonlinear_networks():
    table = tables(NONLINEAR)[0].to_pandas()
    _, runs = direct(NONLINEAR, learning_rate=0.05)
    data, test = paper_samples("nonlinear"), paper_samples("nonlinear", test=True)
    arch = Architecture.mlp(5, 3, activation="gelu-tanh")
    start = initialise(arch, "gaussian", 0.6, 0, [run.address() for run in runs])
    outcome = descend(data, start, 0.05, 120)
    part = table.iloc[[run.index for run in runs]]
    np.testing.assert_array_equal(part.excess_risk, outcome.excess_risk)
    dense = sharpness(data, outcome.ensemble, method="dense")
    np.testing.assert_allclose(part.sharpness, dense.value, rtol=1e-8)
    phi = arch.activation.value
    for risk, (w1, w2, w3) in zip(part.test_risk, outcome.ensemble, strict=True):
        output = (w3 @ phi(w2 @ phi(w1 @ test.X.T))).ravel()
        assert risk == pytest.approx(np.mean((output - test.y) ** 2), rel=1e-12)
    assert table.distance.isna().all()


def test_progress_counts_every_step_of_the_budget():
    for text in (DESCENT, FLOW, NONLINEAR):
        study = parse_spec(text)
        for shard in plan(study):
            done = []
            run_shard(study, shard, 1, done.append)
            assert sum(done) == shard.network_steps


def test_layers_can_be_left_out():
    rows = tables(DATASETS + "[record]\nlayers = false\n")[0].to_pandas()
    assert rows.spectral_norm.isna().all()


def test_an_initialisation_at_a_minimiser():
    text = WIDE.replace("scale = 0.15", 'name = "flattest"\nscale = 0').replace("d = 40", "d = 4")
    rows = tables(text)[0].to_pandas()
    np.testing.assert_allclose(rows.initial_sharpness, rows.minimal_sharpness, rtol=1e-7)


def test_counts_and_points():
    table = frame(tables(DESCENT)[0])
    found = overview(table, 1e-3).counts
    assert (
        found["runs"]
        == len(table)
        == sum(
            count
            for state, count in found.items()
            if state not in ("runs", "learned", "edge of stability")
        )
    )
    resting = table[table.state == "settled"]
    np.testing.assert_allclose(
        resting.edge_share, resting.sharpness * resting.learning_rate / 2, rtol=1e-14
    )
    assert found["edge of stability"] == (table.edge_share >= 0.9).sum()
    every = points(table)
    assert len(every) == 6
    assert every[0].place == {"scale": 0.3, "learning_rate": 0.05}
    assert every[0].counts["runs"] == 9
    values = np.log(table[(table.scale == 0.3) & (table.learning_rate == 0.05)].sharpness)
    assert every[0].means["sharpness"].value == pytest.approx(np.exp(values.mean()))
    lost = [point for point in every if point.counts.get("diverged") == point.counts["runs"]]
    assert all(point.means["sharpness"].count == 0 for point in lost)


def test_bands_cover_the_mean_as_often_as_they_say():
    from scipy import stats

    random = np.random.default_rng(0)
    values = random.standard_normal((400, 8))
    bands = [mean(row, "test_risk") for row in values]
    assert 0.92 <= np.mean([band.low <= 0 <= band.high for band in bands]) <= 0.98
    expected = stats.t.interval(0.95, 7, values[0].mean(), stats.sem(values[0]))
    assert (bands[0].low, bands[0].high) == pytest.approx(expected)
    share = mean([1.0] * 3 + [0.0] * 17, "diverged")
    wilson = stats.binomtest(3, 20).proportion_ci(method="wilson")
    assert (share.low, share.high) == pytest.approx((wilson.low, wilson.high))
    assert mean([5.0], "sharpness").low == pytest.approx(5.0)
    assert np.isnan(mean([np.nan], "sharpness").value)


def test_curves_pool_data_sets():
    table = frame(tables(DATASETS)[0])
    ((_, found),) = facets(table, "relative_rate", "distance", "depth").panels
    assert [curve.label for curve in found] == ["3", "6"]
    assert [list(curve.x) for curve in found] == [[0.5, 1.1]] * 2
    assert found[0].means[0].count == 15
    assert found[0].edge is None


def grid(**axes: list[float]) -> pd.DataFrame:
    """A table of runs: every combination of the axes, two repetitions of each."""
    fixed = {"depth": [4], "width": [5], "scale": [0.3], "learning_rate": [0.1]}
    values = fixed | axes | {"repetition": [0, 1]}
    table = pd.MultiIndex.from_product(values.values(), names=values.keys()).to_frame(index=False)
    table = table.assign(relative_rate=table.learning_rate * table.depth, step_limit=100)
    table = table.assign(edge=2 / table.learning_rate, minimal_sharpness=2.0 * table.depth)
    # Depths differ by orders of magnitude: a mean over them would be seen.
    return table.assign(sharpness=10.0**table.depth * (1 + table.scale), dataset=0)


def test_an_axis_that_is_not_named_gets_panels():
    table = grid(depth=[2, 3, 4], scale=[0.1, 0.2], learning_rate=[0.01, 0.05])
    found = facets(table, "scale", "sharpness", "learning_rate")
    assert (found.axis, found.pooled) == ("depth", {})
    assert [label for label, _ in found.panels] == ["2", "3", "4"]
    for depth, (_, drawn) in zip((2, 3, 4), found.panels, strict=True):
        assert [curve.label for curve in drawn] == ["0.01", "0.05"]
        assert [one.value for one in drawn[0].means] == pytest.approx(
            [10.0**depth * 1.1, 10.0**depth * 1.2]
        )
    # Named, it needs none.
    assert facets(table[table.depth == 3], "scale", "sharpness", "learning_rate").axis is None


def test_what_is_pooled_is_said():
    two = grid(depth=[2, 3], scale=[0.1, 0.2], learning_rate=[0.01, 0.05])
    found = facets(two, "scale", "sharpness")
    assert (found.axis, len(found.panels)) == (None, 1)
    assert found.pooled == {"depth": 2, "learning_rate": 2}
    many = grid(depth=list(range(2, 9)), scale=[0.1, 0.2])
    assert facets(many, "scale", "sharpness").pooled == {"depth": 7}
    assert facets(many[many.depth < 8], "scale", "sharpness").axis == "depth"


def test_axes_that_move_together_are_told_apart_by_one():
    table = grid(depth=[2, 3], scale=[0.1, 0.2], learning_rate=[0.01, 0.05])
    tied = table[(table.depth == 2) == (table.learning_rate == 0.01)]
    assert facets(tied, "scale", "sharpness", "learning_rate").panels[0][0] == ""
    assert facets(tied, "scale", "sharpness").axis == "depth"
    assert facets(tied, "scale", "sharpness").pooled == {}


def test_a_frame_without_lists():
    rows, _, _ = tables(DATASETS)
    table = flat_frame(rows)
    assert "spectral_norm" not in table
    shallow = table[table.depth == 3]
    assert shallow[["spectral_norm_1", "spectral_norm_3", "alignment_2"]].notna().all().all()
    assert shallow[["spectral_norm_4", "alignment_3"]].isna().all().all()
    assert table.map(np.isscalar).all().all()
    assert pd.api.types.is_float_dtype(table["spectral_norm_1"])


def test_a_new_quantity_reaches_the_traces(tmp_path, monkeypatch):
    """One function and one row: nothing else is told of it, and nothing drops it."""
    largest = Measure("the largest |entry| of W_k", lambda layers: entries(layers))

    def entries(layers):
        return np.stack([np.abs(w).max(axis=(1, 2)) for w in layers], axis=1)

    monkeypatch.setitem(measures.LAYER_MEASURES, "largest_entry", largest)
    for method in ('name = "descent"\nlearning_rate = 0.05', 'name = "flow"'):
        study = parse_spec(
            f"""
repetitions = 2
[problem]
paper = "linear"
[architecture]
depth = 3
[initialisation]
scale = 0.5
[method]
{method}
steps = 60
[record]
every = 20
quantities = ["excess_risk", "largest_entry"]
"""
        )
        folder = tmp_path / study.method.name
        run_study(study, folder)
        traces = Store.open(folder).read_traces().to_pandas()
        assert not traces.largest_entry.isna().any()
        start = initialise(
            Architecture.mlp(5, 3), "gaussian", 0.5, 0, [r.address() for r in plan(study)[0].runs]
        )
        first = np.stack(traces[traces.step == 0].largest_entry)
        np.testing.assert_array_equal(first, entries(start.layers()))


def test_networks_with_biases():
    text = """
repetitions = 3
[problem]
generator = "gaussian"
n = 30
d = 3
[architecture]
depth = 2
width = 4
activation = "relu"
biases = true
[initialisation]
scale = 0.6
[method]
learning_rate = 0.02
steps = 200
[record]
every = 100
quantities = ["excess_risk", "sharpness", "spectral_norm"]
"""
    study = parse_spec(text)
    (shard,) = plan(study)
    result = run_shard(study, shard)
    rows, traces = result.rows.to_pandas(), result.traces.to_pandas()
    assert rows.minimal_sharpness.isna().all()
    assert rows.relative_rate.isna().all()
    samples = data_of(study, 0).samples
    architecture = Architecture.mlp(3, 2, 4, "relu", biases=True)
    start = initialise(architecture, "gaussian", 0.6, 0, [run.address() for run in shard.runs])
    final = descend(samples, start, 0.02, 200).ensemble
    for i, layers in enumerate(final):
        _, hessian = oracles.gradient_and_hessian(samples, architecture, layers)
        assert rows.sharpness[i] == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=1e-8)
        risk = float(oracles.risk(architecture, samples.X, samples.y, layers))
        assert rows.train_risk[i] == pytest.approx(risk, rel=1e-12)
        norms = [np.linalg.norm(w[:, :-1], 2) for w in layers]
        np.testing.assert_allclose(rows.spectral_norm[i], norms, rtol=1e-12)
        last = traces[(traces.run == i) & (traces.step == 200)]
        np.testing.assert_allclose(last.spectral_norm.iloc[0], norms, rtol=1e-12)
    with pytest.raises(SettingError, match="learning_rate_unit must be 'absolute'"):
        parse_spec(text.replace("steps = 200", 'steps = 200\nlearning_rate_unit = "critical"'))
