"""Branches from a common state, and the picture that is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import horizon
from benchmarks.report import horizon as section
from benchmarks.tasks import TASKS

from tests.tiny_task import Tiny


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "tiny", Tiny)


def test_branches_start_from_one_state_and_differ_by_their_rate_alone() -> None:
    record = horizon.perform(horizon.Job("tiny", 1e-2, 0))
    assert record["branches"] == horizon.perform(horizon.Job("tiny", 1e-2, 0))["branches"]
    assert len(record["branches"]) == len(horizon.STARTS) * len(horizon.MULTIPLES)
    first = [branch[2:] for branch in record["branches"] if branch[0] == horizon.STARTS[0]]
    assert len({tuple(pair) for pair in first}) == len(horizon.MULTIPLES)


def test_a_branch_of_no_rate_stays_where_it_was() -> None:
    training = horizon._Training(Tiny(), 0)
    before = training.judge()
    assert horizon._branch(training, 0, 0.0) == pytest.approx((before, before), rel=1e-6)


def test_the_best_held_rate_is_that_of_seed_0() -> None:
    cells = [("hold_then_anneal@0.1", 0, 2.0), ("hold_then_anneal@0.3", 0, 1.0)]
    cells += [("hold_then_anneal@0.1", 1, 0.5), ("cosine@1", 0, 0.1)]
    records = [
        {"task": "tiny", "contestant": name, "seed": seed, "validation": loss}
        for name, seed, loss in cells
    ]
    assert horizon.best_held(records) == {"tiny": 0.3}


def test_the_section_says_what_the_records_hold(tmp_path: Path) -> None:
    branches = [
        [0.1, 0.5, 0.9, 2.2],
        [0.1, 1.0, 1.0, 2.0],
        [0.3, 0.5, 0.8, 2.0],
        [0.3, 1.0, 1.0, 2.0],
    ]
    record = {"task": "tiny", "seed": 0, "commit": "abc", "branches": branches}
    assert section.means([record], "tiny") == [
        (0.5, pytest.approx(-15.0), pytest.approx(5.0)),
        (1.0, 0.0, 0.0),
    ]
    assert "| tiny | last point | -15.0 | +0.0 |" in section.section([record])
    assert section.draw([record], tmp_path)[0].stat().st_size > 1000
    assert section.section([]) == section.draw([], tmp_path) == []
