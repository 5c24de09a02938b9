"""A run that is stopped at any step and resumed is the run that went on, to the last bit.

Inside a cycle that run has converged at the same step: the documented rule of a checkpoint. Here in
one process; `test_resume_distributed.py` has processes, `test_auto_lr_state.py` and
`test_probe_state.py` have `hdet.AutoLR`.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import hdet
from tests import auto
from tests.resumable import Run, S, through_a_file

WAYS: dict[str, dict[str, Any]] = {
    "SGD": {"kind": "sgd"},
    "SGD, coupled decay": {"kind": "sgd-coupled-decay"},
    "AdamW": {"kind": "adamw"},
    "an Ensemble": {"kind": "adamw", "general": True},
}


def resumed(way: dict[str, Any], state: Any, stop: int) -> tuple[Any, torch.Tensor]:
    run = Run(num_replicas=4, **way)
    run.train(range(stop % 3))  # whatever it was before
    run.load(state)
    return run.train(range(stop, S)), run.end()


@pytest.mark.parametrize("way", WAYS)
def test_stopped_anywhere_and_resumed_is_never_having_stopped(way: str) -> None:
    for stop in range(S):
        whole = Run(num_replicas=4, **WAYS[way])
        whole.train(range(stop))
        state = through_a_file(whole.save())
        rates, end = whole.train(range(stop, S)), whole.end()
        found, point = resumed(WAYS[way], state, stop)
        assert found == rates, stop
        assert torch.equal(point, end), stop


def test_the_controller_speaks_in_these_runs_and_hears_the_losses() -> None:
    """Negative control: the comparison can fail."""
    run = Run("adamw", 4)
    bases = [own[0] for own in run.train(range(S))]
    planned = Run("adamw", 4, auto_lr=False)
    assert bases != [own[0] for own in planned.train(range(S))]


@pytest.mark.parametrize(
    "drop",
    ["cycle_so_far", "velocity", "cycle", "converged in between", "the sum alone"],
)
def test_without_one_entry_of_the_state_it_is_another_run(drop: str) -> None:
    """Negative control: each of these is needed."""
    way, stop = {"kind": "adamw"}, 13
    whole = Run(num_replicas=4, **way)
    whole.train(range(stop))
    state = whole.save()
    ensemble = state["scheduler"]["ensemble"]
    if drop == "cycle_so_far":
        del ensemble[drop]
    elif drop == "the sum alone":
        ensemble["cycle_so_far"][0]["signal"]["sum"][2] += 1e-3
    elif drop == "velocity":
        for entry in ensemble["hyperparameters"].values():
            entry["velocity"] = 0.0
    elif drop == "cycle":
        ensemble["step"] = ensemble["converged_step"] = stop - 5  # another permutation
    if drop == "converged in between":
        whole = Run(num_replicas=4, **way)
        whole.train(range(stop))
    expected = whole.train(range(stop, S))
    found, _ = resumed(way, state, stop)
    assert found != expected


def test_a_loss_that_was_handed_over_ahead_of_its_step_is_not_asked_for_again() -> None:
    def build() -> hdet.OneCycleLR:
        param = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
        replicas = hdet.VirtualReplicas(2)
        return hdet.OneCycleLR(
            optimizer, 0.1, 9, spread_ratio=0.1, auto_lr=True, cycle_steps=3, replicas=replicas
        )

    live = build()
    live.optimizer.step()
    live.ensemble.observe([1.0, 2.0])
    live.converge()
    other = build()
    other.load_state_dict(through_a_file(live.state_dict()))
    with pytest.raises(hdet.HDETError, match="handed over twice"):
        other.ensemble.observe([1.0, 2.0])
    other.optimizer.step()
    for scheduler in (live, other):
        scheduler.step()
        scheduler.converge()
    assert live.state_dict() == other.state_dict()


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (1, 8), (8, 1)])
@pytest.mark.filterwarnings("ignore:spread_ratio has no effect with a single replica")
def test_a_state_goes_on_at_another_number_of_replicas(
    before: int, after: int, general: bool, caplog: pytest.LogCaptureFixture
) -> None:
    first = Run("adamw", before, general=general)
    first.train(range(13))
    state = through_a_file(first.save())
    second = Run("adamw", after, general=general)
    with caplog.at_level(logging.INFO, logger="hdet"):
        second.load(state)
    assert second.ensemble.base_values == first.ensemble.base_values
    assert second.ensemble.controller_states == first.ensemble.controller_states
    assert any(own["velocity"] for own in second.ensemble.controller_states.values()) or before == 1
    assert second.ensemble.num_steps == 13
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"step 13: a state of {before} replicas goes on at {after}; re-derived" in line
    assert "permutations, and the cycle's losses so far start again" in line
    assert "\n" not in line
    entry = second.ensemble.state_dict()["cycle_so_far"][0]
    assert (entry["num_observed"], entry["signal"]["num_steps"]) == (0, 0)
    optimizer = second.optimizer.state_dict()["state"]
    for index, own in state["optimizer"]["state"].items():
        for name, value in own.items():
            assert torch.equal(optimizer[index][name], value)
    second.train(range(13, S))
    assert second.ensemble.base_values != first.ensemble.base_values


def test_at_the_end_of_a_cycle_nothing_is_lost_at_another_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second, same = Run("sgd", 4), Run("sgd", 2), Run("sgd", 4)
    first.train(range(10))
    with caplog.at_level(logging.INFO, logger="hdet"):
        same.load(first.save())
        assert not caplog.records, "nothing was re-derived"
        second.load(first.save())
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "start again" not in record.getMessage()


@pytest.mark.parametrize("after", [2, 8])
def test_the_statistics_of_auto_lr_go_on_at_another_number(after: int) -> None:
    """Its samples are of the shared gradient, so that they serve any number of replicas."""

    def build(num_replicas: int) -> auto.Run:
        return auto.Run(120, replicas=hdet.VirtualReplicas(num_replicas))

    first, second = build(1), build(after)
    first.train(range(47))
    state = through_a_file(first.state())
    assert state["scheduler"]["ensemble"]["cycle_so_far"][0]["signal"]["samples"]
    second.load(state)
    found = [run.scheduler.ensemble.state_dict() for run in (first, second)]
    for one in found:
        del one["num_replicas"]
        one["cycle_so_far"][0]["signal"].pop("loss")
        one["cycle_so_far"][0].pop("last_step")
    assert repr(found[0]) == repr(found[1])
    assert first.train(range(47, 120)) == second.train(range(47, 120))


class TestTensorRates:
    """A rate in a tensor rounds as it did before the stop."""

    def run(self) -> Run:
        run = Run("sgd", 3, auto_lr=False)
        for group in run.optimizer.param_groups:
            group["lr"] = torch.tensor(0.0137)
        run.scheduler = run.ensemble = hdet.Ensemble(
            run.optimizer,
            hyperparameters=[hdet.LearningRate(g, spread_ratio=0.3) for g in range(2)],
            schedule=torch.optim.lr_scheduler.ExponentialLR(run.optimizer, 0.93),
            cycle_steps=5,
            replicas=hdet.VirtualReplicas(4),
        )
        run.num_replicas = 4
        return run

    @pytest.mark.parametrize("stop", [1, 5, 12])
    def test_they_go_on_to_the_last_bit(self, stop: int) -> None:
        whole, other = self.run(), self.run()
        whole.train(range(stop))
        other.load(through_a_file(whole.save()))
        assert whole.train(range(stop, S)) == other.train(range(stop, S))
        assert torch.equal(whole.end(), other.end())
