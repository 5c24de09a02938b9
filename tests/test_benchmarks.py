"""Contestants, runs and the study, on tasks of a hundred numbers."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import benchmarks.__main__ as entry
import pytest
import torch
from benchmarks import core, overhead, runs, study
from benchmarks.contestants import PEERS, build, grid, ours, with_neighbours
from benchmarks.contestants.greedy import CycleProduct
from benchmarks.runs import Job, perform, perform_all, recorded_steps
from benchmarks.tasks import SUITES, TASKS, expand

import hdet
from tests.tiny_task import Tiny, TwoGroups


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for task in (Tiny, TwoGroups):
        monkeypatch.setitem(TASKS, task.name, task)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def loss_of(contestant: str, task: str = "tiny", seed: int = 0) -> float:
    return float(perform(Job(task, contestant, seed))["validation"])


# ---------------------------------------------------------------------- contestants


def test_the_grid_has_21_cells_and_a_cell_has_its_neighbours() -> None:
    assert len(set(grid(Tiny))) == 21
    assert with_neighbours("sgd", "cosine@0.1") == ["cosine@0.03", "cosine@0.1", "cosine@0.3"]
    assert with_neighbours("sgd", "cosine@1") == ["cosine@0.3", "cosine@1"]


@pytest.mark.parametrize("name", ["one_cycle@0.03", "autolr", "autolr_probe", "greedy"])
@pytest.mark.parametrize("task", ["tiny", "two_groups"])
def test_a_contestant_trains_and_repeats_itself(name: str, task: str) -> None:
    untrained = TASKS[task]().validate(TASKS[task]().build())
    assert loss_of(name, task) < untrained
    assert loss_of(name, task) == loss_of(name, task) != loss_of(name, task, seed=1)


def test_an_ablation_of_nothing_is_autolr_itself() -> None:
    # Also a guard: what `changed` passes must stay what AutoLR passes on its own.
    for setting in ("doubt=2.7", "noise_price=0.2", "anneal=0.4", "doubt=2.7,noise_price=0.2"):
        assert loss_of(f"autolr:{setting}") == loss_of("autolr")
    assert loss_of("autolr:anneal=0.1") != loss_of("autolr")
    assert loss_of("autolr:start_value=1e-2") != loss_of("autolr")


def test_every_ablation_of_the_list_can_be_built_and_is_explained() -> None:
    tables = pytest.importorskip("benchmarks.report.tables")
    for name in ours.ABLATIONS:
        build(name, TwoGroups(), TwoGroups().build())
    assert set(tables.CHANGES) == set(ours.ABLATIONS)


def test_settings_go_to_whoever_has_them() -> None:
    settings = ours.changed("older_window=2.0,patience=9.0,anneal=0.4", 300)
    assert settings["signal"].older_window == 2.0
    assert settings["controller"].patience == 9.0
    assert settings["anneal"] == 0.4
    with pytest.raises(ValueError, match=r"GradientProduct.*got \['colour'\]"):
        ours.changed("colour=3", 300)


def test_the_probe_looks_at_batches_beyond_the_end() -> None:
    first = next(iter(ours.LookAhead(Tiny(), seed=3)))
    assert torch.equal(first[0], Tiny().batch(Tiny.total_steps, 3)[0])


@pytest.mark.parametrize("task", ["tiny", "two_groups"])
def test_the_probe_is_asked_once_cycles_are_long_enough(task: str) -> None:
    plain, probed = (
        perform(Job(task, name, 0, 600))["validation"] for name in ("autolr", "autolr_probe")
    )
    assert plain != probed


def test_the_greedy_signal_is_the_product_with_the_path_of_the_cycle() -> None:
    torch.manual_seed(0)
    params = [torch.randn(4, requires_grad=True), torch.randn(3, requires_grad=True)]
    optimizer = torch.optim.SGD([{"params": [p]} for p in params], lr=0.1)
    signal = CycleProduct()
    signal.attach(optimizer, [0, 1], lambda position: 0.1)
    products = []
    for length in (3, 5):  # the second cycle starts from where the first one ended
        signal.reset(length)
        start = torch.cat([p.detach() for p in params])
        products = []
        for _ in range(length):
            gradient = torch.randn(7)
            params[0].grad, params[1].grad = gradient[:4], gradient[4:]
            here = torch.cat([p.detach() for p in params])
            products.append(float(gradient @ (here - start)))
            optimizer.step()
    trends = signal.trends([signal.statistics().tolist()], independent=True)
    expected = torch.tensor(products)
    assert len(trends) == 2
    assert trends[0].slope == pytest.approx(float(expected.mean()), rel=1e-5)
    assert trends[0].stderr == pytest.approx(float(expected.std() / 5**0.5), rel=1e-5)


def test_greedylr_is_fed_with_each_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    class GreedyLR:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        def step(self, loss: float) -> None:
            seen.append(loss)

        def get_last_lr(self) -> list[float]:
            return [group["lr"] for group in self.optimizer.param_groups]

    module = types.ModuleType("transformers.optimization")
    module.GreedyLR = GreedyLR  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers.optimization", module)
    monkeypatch.setitem(sys.modules, "transformers", types.ModuleType("transformers"))
    record = perform(Job("tiny", "greedylr", 0))
    assert len(seen) == Tiny.total_steps
    assert record["curve"][-1][2] == [1e-3]


@pytest.mark.parametrize("name", PEERS)
def test_a_missing_peer_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = ("schedulefree", "prodigyopt", "dadaptation", "mechanic_pytorch", "dog")
    for module in (*modules, "transformers", "transformers.optimization"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'hdet\[bench\]'"):
        build(name, Tiny(), Tiny().build())


# ---------------------------------------------------------------------- runs


@pytest.mark.parametrize("total", [1, 7, 60, 1000, 1183, 3000, 100_000])
def test_a_curve_has_few_points_and_the_last_step(total: int) -> None:
    steps = recorded_steps(total)
    assert len(steps) <= 25
    assert steps == sorted(set(steps))
    assert steps[-1] == total


def test_a_record_is_small_and_says_where_it_comes_from() -> None:
    record = perform(Job("two_groups", "autolr", 2))
    assert {"commit", "torch", "python", "machine", "seconds", "seed"} <= set(record)
    assert record["total_steps"] == TwoGroups.total_steps
    assert len(runs.dump(record)) < 2000  # 500 of them stay below a mebibyte
    for _, loss, rates in record["curve"]:
        assert loss == float(f"{loss:.4g}")
        assert len(rates) == 1  # both groups have the same


def test_rates_that_differ_are_all_recorded() -> None:
    early = "climb_end=4,settle=1.0,start_value=0.1,doubt=1.0"
    record = perform(Job("two_groups", f"autolr:per_group=True,{early}", 0))
    assert max(len(rates) for _, _, rates in record["curve"]) == 2


def test_a_run_without_a_loss_is_recorded_as_diverged() -> None:
    assert loss_of("cosine@1e+30") == runs.DIVERGED


def test_runs_go_on_where_the_file_stands_in_two_processes(tmp_path: Path) -> None:
    path = tmp_path / "results" / "runs.jsonl"
    jobs = [Job("byte_lm", name, 0, 2) for name in ("cosine@0.01", "autolr", "cosine@0.01")]
    list(perform_all(jobs[:1], path, 1))
    assert [r["contestant"] for r in perform_all(jobs, path, 2)] == ["autolr"]
    assert list(perform_all(jobs, path, 2)) == []
    assert len(runs.load(path)) == 2


def test_records_can_be_dropped_by_task_and_contestant(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    jobs = [Job(task, name, 0) for task in ("tiny", "two_groups") for name in ("autolr", "greedy")]
    list(perform_all(jobs, path, 1))
    assert runs.forget(path, ["tiny"], ["autolr"]) == 1
    assert runs.left_to_do(jobs, path) == [Job("tiny", "autolr", 0)]


# ---------------------------------------------------------------------- the study


def test_round_two_gives_the_best_cells_and_their_neighbours_all_seeds(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    names = study.chosen("grid,autolr")
    lines = list(study.run(["tiny"], names, seeds=3, path=path, num_workers=1))
    records = runs.load(path)
    seeds: dict[str, set[int]] = {}
    for record in records:
        seeds.setdefault(record["contestant"], set()).add(record["seed"])
    assert set(seeds) == {*grid(Tiny), "autolr"}
    promoted = study.promoted("tiny", records)
    assert 6 <= len(promoted) <= 9
    assert {name for name, own in seeds.items() if own == {0, 1, 2}} == {*promoted, "autolr"}
    assert lines[0] == "grid: 21 runs to do, 0 there already"
    assert sum("min left" in line for line in lines) == len(records)
    again = list(study.run(["tiny"], names, seeds=3, path=path, num_workers=1))
    assert [line.split(":")[1].split()[0] for line in again] == ["0", "0"]


def test_names_that_nobody_has_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="--contestants takes grid"):
        study.chosen("grid,adamw")
    assert set(study.chosen("peers")) == set(PEERS)


def test_the_command_takes_tasks_and_suites_of_them() -> None:
    takes = entry.parser().parse_args
    assert takes(["autolr"]).tasks == ["main"]
    for option in ("--task", "--tasks"):
        chosen = takes(["autolr", option, "development", "diamonds"]).tasks
        assert expand(chosen) == [*SUITES["development"], "diamonds"]
    with pytest.raises(SystemExit):
        takes(["autolr", "--task", "nothing"])


def test_the_command_writes_a_trial_where_git_does_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "QUICK", tmp_path)
    command = ["autolr", "--quick", "--workers", "1", "--seeds", "1", "--contestants", "autolr"]
    entry.main([*command, "--task", "tiny"])
    entry.main([*command, "--task", "tiny", "--redo"])
    assert "1 records dropped" in capsys.readouterr().out
    record = json.loads((tmp_path / "autolr.jsonl").read_text())
    assert record["total_steps"] == study.QUICK_STEPS
    with pytest.raises(SystemExit, match="got 'nobody'"):
        entry.main([*command[:-1], "nobody"])
    with pytest.raises(SystemExit, match="not the grid"):
        entry.main(["autolr", "--quick", "--redo"])


# ---------------------------------------------------------------------- overhead


def test_overhead_is_that_of_whole_runs_in_turns() -> None:
    names = ("hold_then_anneal@0.003", "autolr")
    seconds = overhead.lockstep(Tiny(), names, 50, 20)
    assert [len(side) for side in seconds] == [3, 3]
    row = overhead.run_overhead("tiny", total_steps=200, window=20, repeats=3)
    assert 0.5 < row["ratio"] < 50.0
    assert set(row["parts"]) == {"first tenth", "hold", "anneal"}
    step = overhead.step_overhead(4, windows=3)
    page = overhead.render(
        {"provenance": {"commit": "c", "torch": "t", "machine": "m"}, "runs": [row], "step": [step]}
    )
    assert "| tiny | 200 | 3 |" in page
    assert overhead.render({}) == ""
    assert core.render({}).startswith("# ")


def test_overhead_takes_autolr_and_torch_on_the_same_batches() -> None:
    loop = overhead.Loop(Tiny(), "autolr")
    assert isinstance(loop.contestant, ours.Auto)
    assert isinstance(loop.contestant.scheduler, hdet.AutoLR)
    before = [p.clone() for p in loop.model.parameters()]
    assert loop.advance([Tiny().batch(step, 0) for step in range(5)]) > 0.0
    assert any(not torch.equal(a, b) for a, b in zip(before, loop.model.parameters(), strict=True))
