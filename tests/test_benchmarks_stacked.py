"""Lanes of a stack are the runs that they would be alone; a study keeps what it finished."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import benchmarks.__main__ as entry
import pytest
import torch
from benchmarks import contestants, runs, stacked, timing
from benchmarks.stacked import study, training
from benchmarks.stacked.data import Corpus, library
from benchmarks.stacked.stack import Engine, Stack
from benchmarks.stacked.study import Plan
from benchmarks.stacked.task import QUICK, Gpt
from benchmarks.stacked.training import Clock, train

CPU = torch.device("cpu")
DATA = b"".join(b"def f%d(x):\n    return x + %d\n" % (i, i * i) for i in range(400))


def tiny(total_steps: int = 20, clip: float = 1.0) -> Gpt:
    task = Gpt(Corpus.of(DATA), QUICK, total_steps)
    task.clip = clip
    return task


def plain(*, compiled: bool = False) -> Engine:
    return Engine(CPU, half=False, compiled=compiled, say=lambda line: None)


def together(names: list[str], task: Gpt, seed: int = 1) -> dict[str, dict[str, Any]]:
    outcome = train(task, seed, names, plain(), Clock(), lambda line: None)
    assert outcome.is_complete
    return outcome.results


def alone(name: str, task: Gpt, seed: int = 1) -> dict[str, Any]:
    return runs.train(task, seed, lambda t, m: contestants.build(name, t, m, seed))


# ---------------------------------------------------------------------- what is computed

FIXED = ["cosine@0.003", "hold_then_anneal@0.03", "one_cycle@0.1"]
OWN = ["autolr", "autolr:start_value=1e-3", "autolr:start_value=1e-2,settle=1.0"]


@pytest.mark.parametrize("names", [FIXED, OWN])
def test_a_lane_is_the_run_that_it_would_be_alone(names: list[str]) -> None:
    # The norm that is clipped to is below the gradients', so that clipping by lane is tested too.
    results = together(names, tiny(clip=0.1))
    for name in names:
        reference = alone(name, tiny(clip=0.1))
        assert results[name]["validation"] == pytest.approx(reference["validation"], rel=1e-5)
        pairs = zip(results[name]["curve"], reference["curve"], strict=True)
        for (step, loss, rates), (other_step, other_loss, other_rates) in pairs:
            assert step == other_step
            assert loss == pytest.approx(other_loss, rel=1e-3)  # written to four digits
            assert rates == pytest.approx(other_rates, rel=1e-3)


def test_lanes_differ_and_the_check_can_fail() -> None:
    losses = {name: own["validation"] for name, own in together(FIXED, tiny()).items()}
    assert len(set(losses.values())) == 3
    assert losses[FIXED[0]] != pytest.approx(alone(FIXED[1], tiny())["validation"], rel=1e-5)
    unclipped = alone(FIXED[0], tiny(clip=1e9))["validation"]
    assert together(FIXED, tiny(clip=0.1))[FIXED[0]]["validation"] != pytest.approx(
        unclipped, rel=1e-5
    )


def test_stacked_gradients_are_the_models_own() -> None:
    task = tiny()
    models = [task.build() for _ in range(3)]
    stack = Stack(models[0], 3, CPU)
    with torch.no_grad():
        for lane, model in zip(stack.lanes, models, strict=True):
            for view, param in zip(lane.parameters(), model.parameters(), strict=True):
                view.copy_(param)
    windows = task.batch(0, 0)[0]
    losses = plain().losses(stack.params, windows).tolist()
    for _ in range(2):  # a second backward does not add to the first
        stack.backward(plain().losses(stack.params, windows))
    for index, (lane, model) in enumerate(zip(stack.lanes, models, strict=True)):
        loss = model(windows)
        loss.backward()
        assert losses[index] == pytest.approx(loss.item(), rel=1e-6)
        lane.take_gradients()
        for view, param in zip(lane.parameters(), model.parameters(), strict=True):
            assert view.grad is not None
            assert torch.allclose(view.grad, param.grad, rtol=1e-4, atol=1e-7)


def test_a_lane_that_diverges_or_raises_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calm = together(FIXED[:1], tiny())[FIXED[0]]
    results = together([FIXED[0], "cosine@1e+30"], tiny())
    assert results["cosine@1e+30"]["validation"] == runs.DIVERGED
    assert results[FIXED[0]]["validation"] == pytest.approx(calm["validation"], rel=1e-6)
    assert all(math.isfinite(loss) for _, loss, _ in results["cosine@1e+30"]["curve"])

    class Broken(contestants.Contestant):
        def after_backward(self, loss: torch.Tensor) -> None:
            raise ValueError("broken")

    def build(name: str, task: Gpt, lane: torch.nn.Module, seed: int) -> contestants.Contestant:
        return Broken(task, lane) if name == "dog" else whole(name, task, lane, seed)

    whole = contestants.build
    monkeypatch.setattr(training.contestants, "build", build)
    said: list[str] = []
    outcome = train(tiny(), 1, [FIXED[0], "dog"], plain(), Clock(), said.append)
    assert outcome.results.keys() == {FIXED[0]}
    assert any("dog failed with ValueError: broken" in line for line in said)


def test_what_cannot_be_compiled_is_computed_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler")

    task = tiny()
    windows = task.batch(0, 0)[0]
    monkeypatch.setattr(torch, "compile", refuse)
    said: list[str] = []
    engine = Engine(CPU, half=False, compiled=True, say=said.append)
    engine.prepare(task.build(), 2, windows)
    assert said == ["not compiled: RuntimeError: no compiler"]
    assert not engine.compiled

    monkeypatch.setattr(torch, "compile", lambda f, **_: lambda p, w: 1.1 * f(p, w))
    engine = Engine(CPU, half=False, compiled=True, say=said.append)
    engine.prepare(task.build(), 2, windows)
    assert said[-1] == "not compiled: they disagree"

    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    engine = Engine(CPU, half=True, compiled=True, say=said.append)
    engine.prepare(task.build(), 2, windows)
    assert engine.compiled
    assert said[-1].startswith("compiled for 2 lanes")


def test_the_corpus_is_the_library_the_same_each_time_and_split_by_its_end() -> None:
    corpus = Corpus.of(DATA)
    assert len(corpus.held_out) == int(0.1 * len(DATA))
    assert bytes(corpus.training) + bytes(corpus.held_out) == DATA
    assert len(library()) > 2_000_000
    with pytest.raises(ValueError, match="--corpus must hold out at least 33 bytes"):
        Gpt(Corpus.of(b"x" * 100), QUICK).held_out()


def test_the_commit_is_unknown_where_there_is_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.shutil, "which", lambda name: None)
    assert timing.commit.__wrapped__() == "unknown"


# ---------------------------------------------------------------------- the study


def plan(path: Path, **settings: Any) -> Plan:
    given = {"names": ["grid", "autolr"], "steps": [8], "seeds": 1, **settings}
    return Plan(path=path, device=CPU, size=QUICK, compiled=False, **given)


def test_longer_runs_have_what_was_best_in_the_shorter_ones(tmp_path: Path) -> None:
    path = tmp_path / "new" / "stacked.jsonl"
    said: list[str] = []
    study.run(plan(path, steps=[8, 12], seeds=2, commit="abc"), Corpus.of(DATA), said.append)
    records = runs.load(path)
    names = {
        task: {r["contestant"] for r in records if r["task"] == task}
        for task in ("gpt_8", "gpt_12")
    }
    assert len(names["gpt_8"]) == 22
    assert 7 <= len(names["gpt_12"]) <= 10
    assert "autolr" in names["gpt_12"]
    assert {r["seed"] for r in records} == {0, 1}
    assert {r["commit"] for r in records} == {"abc"}
    assert all(len(runs.dump(r)) < 2500 for r in records)
    assert any("gpt_12: held-out loss" in line for line in said)
    study.run(plan(path, steps=[8, 12], seeds=2), Corpus.of(DATA), said.append)
    assert runs.load(path) == records
    assert sum("there already" in line for line in said) == 4


def test_what_does_not_fit_into_the_time_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stacked.jsonl"
    said: list[str] = []
    study.run(plan(path, names=["autolr"], max_seconds=5.0), Corpus.of(DATA), said.append)
    assert any("skipped" in line for line in said)
    monkeypatch.setattr(study, "RESERVE", 0.0)
    late = plan(path, names=["autolr"], max_seconds=0.5, steps=[2000])
    study.run(late, Corpus.of(DATA), said.append)
    assert any("given up" in line for line in said)
    assert not path.exists()
    (partial,) = runs.load(path.with_suffix(".partial.jsonl"))
    assert "validation" not in partial
    assert partial["curve"]


def test_who_cannot_take_part_is_left_out_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prodigyopt", None)
    path = tmp_path / "stacked.jsonl"
    said: list[str] = []
    names = ["prodigy", "autolr", "cosine@0.01"]
    study.run(plan(path, names=names), Corpus.of(DATA), said.append)
    assert any(line.startswith("left out prodigy", 10) for line in said)
    assert [r["contestant"] for r in runs.load(path)] == ["cosine@0.01", "autolr"]
    with pytest.raises(ValueError, match="none that runs the model itself"):
        study.run(plan(path, names=["autolr_probe"]), Corpus.of(DATA))


def test_the_table_says_who_diverged() -> None:
    losses = {"cosine@0.01": 2.0, "autolr": 1.9, "cosine@0.1": runs.DIVERGED}
    records = [
        {"task": "gpt_8", "contestant": name, "validation": loss} for name, loss in losses.items()
    ]
    _, *rows = study.table(records)
    assert [row.split()[0] for row in rows] == ["autolr", "cosine@0.01", "cosine@0.1"]
    assert "-5.0 %" in rows[0]
    assert rows[2].endswith("diverged")


def test_the_command_writes_and_renders_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "QUICK", tmp_path)
    monkeypatch.setattr(stacked.command, "library", lambda: DATA)
    corpus = tmp_path / "corpus"
    entry.main(["stacked", "--write-corpus", str(corpus)])
    assert corpus.read_bytes() == DATA
    command = ["stacked", "--quick", "--device", "cpu", "--eager", "--corpus", str(corpus)]
    command += ["--steps", "8", "--seeds", "1", "--contestants"]
    entry.main([*command, "grid,autolr,autolr:start_value=1e-9,schedulefree"])
    assert "hold_then_anneal@0.01" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="got 'greedy'"):
        entry.main([*command, "greedy"])
    record = json.loads((tmp_path / stacked.FILE).read_text().splitlines()[-1])
    assert record["precision"] == "float32"
    report = pytest.importorskip("benchmarks.report")
    lanes = runs.load(tmp_path / stacked.FILE)
    own = {"task": "byte_lm", "contestant": "autolr", "seed": 0, "validation": 2.0, "curve": []}
    report.write([{**lanes[0], **own}], {}, tmp_path, (), lanes)
    text = (tmp_path / "results.md").read_text().split("## A larger model")[1]
    assert "### 8 steps" in text
    assert "| AutoLR, `start_value=1e-9` | 1 |" in text
    # A peer whose package is not installed takes no part.
    takes_part = importlib.util.find_spec("schedulefree") is not None
    assert ("| Schedule-Free | 1 |" in text) == takes_part
    assert "| AutoLR, `start_value=1e-3` | 0 | not run | not run |" in text
    for kind in ("schedules", "rates"):
        assert (tmp_path / "figures" / f"{kind}_gpt_8.png").exists()
        assert f"figures/{kind}_gpt_8.png" in text
