"""A few kills, and whether the judge sees what is lost or half written."""

from __future__ import annotations

from adversary import kills
from adversary.kills import SUBJECTS, Undisturbed, _half


def test_killed_at_random_instants():
    score = kills.run(3, seed=2, only="study")
    score.failures += kills.run(2, seed=2, only="train over an older run").failures
    assert score.failures == []
    assert score.count["kills"] >= 2


def test_the_judge_sees_what_is_wrong():
    whole = Undisturbed({}, {"study/runs/shard-1.parquet": b"a", "study/study.json": b"b"}, 1.0)
    study = SUBJECTS["study"]
    shard = {"study/runs/shard-1.parquet": b"a"}
    assert _half(shard, {}, whole, study) is None
    assert "half written" in str(_half({"study/study.json": b""}, {}, whole, study))
    assert "half written" in str(_half({"study/other": b"b"}, {}, whole, study))
    assert "lost" in str(_half({}, shard, whole, study))
    train = Undisturbed(
        {"train/summary.json": b"0", "train/trace": b"1"},
        {"train/summary.json": b"2", "train/trace": b"3"},
        1.0,
    )
    mixed = {"train/summary.json": b"0", "train/trace": b"3"}
    assert "another run" in str(_half(mixed, {}, train, SUBJECTS["train"]))
    assert _half({"train/trace": b"3"}, {}, train, SUBJECTS["train"]) is None
