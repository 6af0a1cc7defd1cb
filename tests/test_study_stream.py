"""Tables that come shard by shard say what the whole table says."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flatmin.core.errors import DataError
from flatmin.study import plan, runner, shard_files, stream
from flatmin.study.execute import ShardResult
from flatmin.study.results import Results
from flatmin.study.spec import parse_spec
from flatmin.study.store import Store
from flatmin.study.summary import facets, overview
from flatmin.study.tally import Sums

# Runs of one shard are not consecutive: steps come first in a shard, and depth varies fastest.
SPEC = """\
seed = 3
datasets = 2
repetitions = 3
problem = { generator = "gaussian", n = 20, d = 3 }
architecture = {}
method = { learning_rate_unit = "critical" }
record = { every = 20, quantities = ["excess_risk", "spectral_norm"] }

[grid]
scale = [0.3, 0.6]
depth = [2, 4]

[[grid.zip]]
steps = [40, 80, 60]
learning_rate = [0.4, 0.9, 1.7]
"""
STUDY = parse_spec(SPEC)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A study in shards of 16 runs or fewer."""
    out = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "plan", lambda study: plan.plan(study, 1.0))
        runner.run_study(STUDY, out)
    assert len(Store.open(out).rows()) > 6
    return Results(directory=out)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(stream, "PIECE_ROWS", 7)
    monkeypatch.setattr(stream, "_KEPT_BYTES", 1)


def test_pieces_are_the_table_in_order(results, small_pieces):
    for kind, rows in (("runs", results.store.rows()), ("traces", results.store.traces())):
        pieces = list(rows.pieces())
        assert {piece.num_rows for piece in pieces[:-1]} == {7}
        parts = [pq.read_table(path) for path in (results.directory / kind).iterdir()]
        expected = pa.concat_tables(parts).sort_by("run").combine_chunks()
        found = pa.concat_tables(pieces).combine_chunks()
        assert found.equals(expected.cast(found.schema))
        assert len(found) > 20


@pytest.mark.parametrize("traces", [False, True])
def test_exports_do_not_depend_on_the_size_of_pieces(results, tmp_path, request, traces):
    results.export(tmp_path / "one.csv", traces)
    results.export(tmp_path / "one.parquet", traces)
    request.getfixturevalue("small_pieces")
    count = results.export(tmp_path / "two.csv", traces)
    assert count == results.export(tmp_path / "two.parquet", traces)
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    one, two = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("one", "two"))
    assert one.equals(two)
    assert len(one) == count
    table = one.to_pandas()
    for name in [name for name in table if pa.types.is_list(one.schema.field(name).type)]:
        lists = [[] if one is None else list(one) for one in table.pop(name)]
        longest = max(map(len, lists))
        wide = pd.DataFrame([one + [np.nan] * (longest - len(one)) for one in lists], dtype=float)
        wide.columns = [f"{name}_{k + 1}" for k in range(wide.shape[1])]
        table = pd.concat([table, wide], axis=1)
    assert (tmp_path / "two.csv").read_text() == table.to_csv(index=False)


def test_summaries_of_shards_are_those_of_the_table(results):
    table = results.runs
    whole = overview(table, results.store.learned_at, 0)
    assert results.summary().as_dict() == whole.as_dict()
    assert whole.counts["runs"] == STUDY.runs
    for x, y, by in (("scale", "sharpness", None), ("relative_rate", "learned", "depth")):
        one, two = results.facets(x, y, by), facets(table, x, y, by)
        assert one.as_dict() == two.as_dict()
    assert results.facets().as_dict() == facets(table, "scale", "sharpness").as_dict()


def test_means_are_those_of_numpy(results):
    table = results.runs
    table = table[(table.scale == 0.3) & (table.step_limit == 40)]
    ((_, (curve,)),) = facets(table, "depth", "train_risk").panels
    for depth, mean in zip(curve.x, curve.means, strict=True):
        values = table[table.depth == depth].train_risk
        values = values[np.isfinite(values)]
        assert mean.count == len(values)
        assert mean.value == pytest.approx(values.mean(), rel=1e-14)


def test_a_run_that_is_there_twice_is_refused(results, tmp_path):
    """A whole shard with a name and digests of its own that holds runs of another."""
    out = tmp_path / "out"
    runner.run_study(STUDY, out)
    store = Store.open(out)
    rows = store.read_rows()
    twice = pa.concat_tables([rows.slice(5, 3), rows.slice(5, 1)]).combine_chunks()
    for table in (rows.slice(5, 3), twice):
        packed = shard_files.pack(store.study_hash, "other", ShardResult(table, None))
        store.write(packed)
        path = shard_files.shard_path(out / "runs", "other")
        with pytest.raises(DataError, match="holds a run twice"):
            store.read_rows()
        with pytest.raises(DataError, match="holds a run twice"):
            Results(directory=out).summary()
        path.unlink()
    assert store.read_rows().equals(rows)


def test_sums_are_exact_in_any_order():
    random = np.random.default_rng(0)
    wild = random.standard_normal(500) * 2.0 ** random.integers(-300, 300, 500)
    for values in (
        wild,
        1e6 + 1e-7 * random.standard_normal(500),
        np.append(wild, [1e300, 5e-324]),
    ):
        exact = [Fraction(value) for value in values.tolist()]
        mean = sum(exact) / len(exact)
        spread = sum((one - mean) ** 2 for one in exact) / (len(exact) - 1)
        for order in (values, values[::-1], random.permutation(values)):
            sums = Sums()
            for part in np.array_split(order, random.integers(1, 20)):
                sums.add(part)
            assert sums.mean == float(mean)
            assert sums.deviation**2 == pytest.approx(
                float(spread) if spread < 2**1000 else math.inf, rel=1e-15
            )
    assert Sums().add(np.full(1000, 0.1)).deviation == 0.0
