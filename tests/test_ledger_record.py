"""A comparison and its record: slack, room, the tightest entry, counts, and what JSON gets."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from flatmin.ledger.ledger import Ledger
from flatmin.ledger.record import Place, Record, Verdict, compare, merge

NAN, INF = math.nan, math.inf


def of(smaller, larger, **options) -> Record:
    settings = {"measured": "smaller", "hypothesis": "none", "place": str} | options
    return compare(smaller, larger, statement="lemma-0", **settings)


def test_slack_is_the_larger_side_over_the_smaller_minus_one() -> None:
    record = of([1.0, 4.0, 2.0], [2.0, 5.0, 6.0])
    assert (record.verdict, record.statement) == (Verdict.HOLDS, "lemma-0")
    assert record.slack == pytest.approx(0.25)
    assert (record.measured, record.bound) == (4.0, 5.0)
    assert (record.at, record.networks, record.violations) == ("(1,)", 3, 0)
    assert of(3.0 * np.ones(2), 3.0).slack == 0.0


def test_either_side_may_be_the_measured_one() -> None:
    record = of([1.0], [2.0], measured="larger")
    assert (record.measured, record.bound, record.slack) == (2.0, 1.0, 1.0)
    np.testing.assert_array_equal(record.sides.measured, [2.0])
    np.testing.assert_array_equal(record.sides.bound, [1.0])


def test_a_violation_is_one_beyond_the_room() -> None:
    assert of([1.1], [1.0]).verdict is Verdict.VIOLATED
    assert of([1.1], [1.0], room=0.05).verdict is Verdict.VIOLATED
    within = of([1.1], [1.0], room=0.2)
    assert (within.verdict, within.violations, within.room) == (Verdict.HOLDS, 0, 0.2)
    assert within.slack == pytest.approx(1.0 / 1.1 - 1.0)


def test_a_violation_is_shown_before_a_smaller_slack_within_its_room() -> None:
    record = of([2.0, 1.1], [1.0, 1.0], room=[10.0, 0.0])
    assert record.verdict is Verdict.VIOLATED
    assert (record.at, record.violations, record.networks) == ("(1,)", 1, 2)


def test_entries_that_the_room_exceeds_come_last() -> None:
    record = of([1.0, 1.0], [1.01, 3.0], room=[2.0, 0.1])
    assert (record.at, record.networks) == ("(1,)", 2)
    # ... and are shown if there is no other.
    assert of([1.0], [1.01], room=2.0).at == "(0,)"


def test_a_room_that_is_not_a_number_hides_nothing() -> None:
    assert of([2.0, 1.0], [1.0, 2.0], room=[NAN, 0.0]).violations == 1
    assert of([2.0], [1.0], room=INF).verdict is Verdict.HOLDS


def test_entries_that_are_not_finite_were_not_measured() -> None:
    record = of([NAN, 1.0, INF, 2.0], [1.0, NAN, 1.0, 3.0])
    assert (record.verdict, record.at, record.networks) == (Verdict.HOLDS, "(3,)", 1)
    assert np.isnan(record.sides.slack[:3]).all()
    nothing = of([NAN], [1.0])
    assert (nothing.verdict, nothing.at) == (Verdict.NOT_APPLICABLE, "not measured")
    assert nothing.slack is nothing.bound is nothing.measured is None
    assert nothing.sides is None


def test_two_zeros_put_nothing_to_the_test() -> None:
    assert of([0.0, 0.0], [0.0, 0.0]).verdict is Verdict.NOT_APPLICABLE
    assert of([0.0, 1.0], [0.0, 2.0]).networks == 1
    assert of([0.0], [1.0]).slack == INF
    gone = of([1.0], [0.0])
    assert (gone.verdict, gone.slack) == (Verdict.VIOLATED, -1.0)


def test_only_entries_whose_hypotheses_are_met_count() -> None:
    record = of([3.0, 1.0], [1.0, 2.0], applies=[False, True])
    assert (record.verdict, record.at, record.networks) == (Verdict.HOLDS, "(1,)", 1)
    outside = of([3.0, 1.0], [1.0, 2.0], applies=False)
    assert outside.verdict is Verdict.NOT_APPLICABLE
    # What was measured is still shown, at its tightest.
    assert (outside.slack, outside.at) == (1.0 / 3.0 - 1.0, "(0,)")
    assert (outside.networks, outside.violations) == (0, 0)


def test_networks_are_counted_along_their_axis() -> None:
    smaller = np.ones((4, 3, 2))
    smaller[:, 1] = 5.0
    smaller[2, 2, 0] = 7.0
    smaller[:, 0, 1] = NAN
    record = of(smaller, 2.0, place=Place(str, ("entry", "network", "layer")))
    assert (record.networks, record.violations) == (3, 2)
    assert record.at == "(2, 2, 0)"
    assert record.sides.axes == ("entry", "network", "layer")
    assert record.sides.bound.shape == (4, 3, 2)


def test_json_has_no_infinities() -> None:
    record = of([0.0], [1.0], room=INF, error=NAN, part="upper", flow_only=True, note="why")
    shown = json.loads(json.dumps(record.as_dict(), allow_nan=False))
    assert shown["slack"] is shown["room"] is shown["error"] is None
    assert (shown["measured"], shown["bound"]) == (0.0, 1.0)
    assert shown["verdict"] == "holds"
    assert {"statement", "hypothesis", "at", "part", "networks", "violations", "note"} <= set(shown)
    assert "sides" not in shown
    nothing = Record(hypothesis="a hypothesis", part="lower").as_dict()
    json.dumps(nothing, allow_nan=False)
    assert (nothing["verdict"], nothing["hypothesis"]) == ("not applicable", "a hypothesis")
    assert nothing["slack"] is None


def test_merging_keeps_the_tightest_and_adds_up_counts() -> None:
    records = [
        of([1.0, 1.0], 2.0, part="lower"),
        of([1.0], 1.5, part="lower"),
        of([3.0, 1.0], [2.9, 2.0], part="lower"),
        Record(statement="lemma-0", hypothesis="none", part="lower"),
        of([1.0], 4.0, part="upper"),
    ]
    lower, upper = merge(records)
    assert (lower.part, lower.verdict) == ("lower", Verdict.VIOLATED)
    assert (lower.measured, lower.networks, lower.violations) == (3.0, 5, 1)
    assert (upper.part, upper.slack) == ("upper", 3.0)
    (tightest, _) = merge([records[0], records[1], records[4]])
    assert (tightest.slack, tightest.networks) == (0.5, 3)


def test_merging_prefers_what_applies_to_what_does_not() -> None:
    outside = of([9.0], [1.0], applies=False)
    (record,) = merge([outside, of([1.0], [2.0])])
    assert (record.verdict, record.slack) == (Verdict.HOLDS, 1.0)
    (record,) = merge([Record(statement="lemma-0", hypothesis="none"), outside])
    assert record.slack == outside.slack


def test_a_line_names_the_part_that_is_tightest() -> None:
    parts = [of([1.0], [2.0], part="lower"), of([3.0], [2.0], part="upper")]
    (record,) = Ledger(records=tuple(parts), networks=1).lines
    assert (record.verdict, record.at) == (Verdict.VIOLATED, "upper: (0,)")
