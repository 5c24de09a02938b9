"""Pages and figures come from the records, and from nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import benchmarks.__main__ as entry
import pytest
from benchmarks import core, overhead, report, runs
from benchmarks.contestants import ABLATIONS, PEERS, grid
from benchmarks.report import Results, tables
from benchmarks.report.page import page
from benchmarks.runs import DIVERGED
from benchmarks.tasks import SUITES, TASKS

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "results" / "autolr.jsonl"


def record(contestant: str, loss: float, *, seed: int = 0, task: str = "byte_lm") -> dict[str, Any]:
    rates = [[] if contestant in PEERS else [1e-3 * step] for step in (1, 2, 0)]
    return {
        "task": task,
        "contestant": contestant,
        "seed": seed,
        "validation": loss,
        "seconds": 1.0,
        "curve": [[10 * i, loss, own] for i, own in enumerate(rates, 1)],
        "commit": "abc",
        "torch": "2",
        "machine": "m",
    }


def costs() -> dict[str, Any]:
    path = ROOT / "benchmarks" / "results" / "overhead.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def full() -> list[dict[str, Any]]:
    """Every cell once and the rest with three seeds; losses by position."""
    records = []
    for task in SUITES["main"]:
        kind = TASKS[task]
        records += [record(c, 2.0 + i, task=task) for i, c in enumerate(grid(kind))]
        names = (*grid(kind)[:2], "autolr", "autolr_probe", *PEERS, *ABLATIONS)
        for seed in range(3):
            records += [
                record(name, 2.0 + 0.01 * i + 0.1 * seed, seed=seed, task=task)
                for i, name in enumerate(names)
            ]
    return records


def test_distances_are_paired_by_seed() -> None:
    own = [("autolr", 0, 1.1), ("autolr", 1, 2.0), ("autolr", 2, 9.9)]
    best = [("cosine@0.01", 0, 1.0), ("cosine@0.01", 1, 2.0)]
    results = Results(record(name, loss, seed=seed) for name, seed, loss in own + best)
    score = results.score("byte_lm", "autolr", "cosine@0.01")
    assert score is not None
    assert score.mean == pytest.approx(5.0)
    assert score.std == pytest.approx(10.0 / math.sqrt(2.0))
    assert score.num_seeds == 2
    assert tables.percent(score) == "+5.0 &plusmn; 7.1 (2 seeds)"
    assert results.is_ahead("byte_lm", "autolr", "cosine@0.01") is False
    assert results.score("byte_lm", "dog", "cosine@0.01") is None
    assert results.is_ahead("byte_lm", "autolr", "dog") is None


def test_the_luck_of_one_seed_does_not_make_a_cell_the_best() -> None:
    records = [record("cosine@0.01", loss, seed=i) for i, loss in enumerate((2.0, 2.1))]
    results = Results([*records, record("cosine@0.1", 1.9)])
    assert results.best_cell("byte_lm") == "cosine@0.01"
    assert results.best_cell("byte_lm", ["one_cycle"]) is None


def test_the_report_keeps_to_the_main_tasks_unless_it_is_given_others() -> None:
    records = [record("autolr", 2.0), record("dog", 3.0, task="teacher", seed=4)]
    assert Results(records).tasks == ["byte_lm"]
    assert Results(records).num_seeds == 1
    assert not Results(records).contestants("teacher")
    assert Results(records, SUITES["development"]).tasks == ["teacher"]


def test_the_last_record_of_a_run_counts() -> None:
    results = Results([record("dog", 3.0), record("dog", 2.0)])
    assert results.losses("byte_lm", "dog") == {0: 2.0}


def test_a_diverged_seed_is_shown_and_never_averaged() -> None:
    records = [record("dog", 2.0), record("dog", DIVERGED, seed=1)]
    best = [record("cosine@0.01", 2.0, seed=seed) for seed in (0, 1)]
    results = Results(records + best)
    assert tables.loss(results.losses("byte_lm", "dog")) == "diverged (1 of 2)"
    assert tables.percent(results.score("byte_lm", "dog", "cosine@0.01")) == "diverged"
    text = "\n".join(tables.summary(results))
    assert "| DoG | diverged | 0 of 1 | 0 of 1 |" in text


def test_a_full_set_renders_everybody(tmp_path: Path) -> None:
    report.write(full(), {"runs": [{"task": "byte_lm", "ratio": 1.021}]}, tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert tables.MISSING not in text.split("## Summary")[1]
    for name in ("AutoLR, with a probe", "GreedyLR", "+2.1", "greedy", "commit abc"):
        assert name in text
    assert text.isascii()
    pictures = sorted((tmp_path / "figures").iterdir())
    assert len(pictures) == 2 * len(SUITES["main"])
    for picture in pictures:
        assert f"](figures/{picture.name})" in text
        assert picture.stat().st_size < 40_000


def test_rendering_again_changes_nothing(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        report.write(full()[:60], {}, tmp_path / folder)
    one, two = (sorted((tmp_path / folder).rglob("*.*")) for folder in ("a", "b"))
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record("autolr", 2.0)],
        [record("dog", 2.0)],
        [record("dog", DIVERGED)],
        [record("cosine@0.01", 2.0), record("autolr:start_value=1e-9", 2.1, seed=1)],
    ],
)
def test_partial_records_render_and_invent_nothing(
    records: list[dict[str, Any]], tmp_path: Path
) -> None:
    report.write(records, {}, tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert (tables.MISSING in text) if records else ("no results yet" in text)
    assert text.count("| **AutoLR** |") <= 3


def test_the_command_renders_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "QUICK", tmp_path)
    (tmp_path / "autolr.jsonl").write_text(runs.dump(record("autolr", 2.0)))
    entry.main(["render", "--quick"])
    assert (tmp_path / "results.md").exists()
    assert (tmp_path / "performance.md").exists()


def test_the_pages_are_what_the_raw_results_make() -> None:
    # Nobody has typed a number: `python -m benchmarks render` after a change of either.
    docs = ROOT / "docs"
    records = runs.load(RECORDS)
    results, unseen = Results(records), Results.of_suite(records, "unseen")
    branches = runs.load(RECORDS.parent / "horizon.jsonl")
    lanes = runs.load(RECORDS.parent / "stacked.jsonl")
    made = page(results, unseen, costs(), (docs / "figures").glob("*.png"), branches, lanes)
    assert (docs / "results.md").read_text() == made
    measured = json.loads((RECORDS.parent / "core.json").read_text())
    performance = core.render(measured) + overhead.render(costs())
    assert (docs / "performance.md").read_text() == performance


def test_the_raw_results_stay_small() -> None:
    assert RECORDS.stat().st_size < 2**20
    for line in RECORDS.read_text().splitlines():
        assert len(line) < 2500
        assert len(json.loads(line)["curve"]) <= 25
