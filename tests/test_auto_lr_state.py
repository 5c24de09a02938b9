"""`hdet.AutoLR` stopped and gone on with: checkpoints and copies, to the last bit."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hdet
from hdet.errors import HDETError
from tests.auto import Run, model_of, optimizer_of

S = 400
WHERE = {"the climb": 6, "settling": 77, "the hold": 180, "the anneal": 261}


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    found: dict[str, Any] = torch.load(buffer, weights_only=True)
    return found


WAYS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "deepcopy": copy.deepcopy,
    "file": through_a_file,
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_going_on_from_a_checkpoint_equals_never_having_stopped(
    where: str, how: str, kind: str
) -> None:
    stop = WHERE[where]
    whole = Run(S, kind)
    whole.train(range(stop))
    saved = WAYS[how](whole.state())
    expected = whole.train(range(stop, S))
    resumed = Run(S, kind)
    resumed.train(range(3))  # whatever it was before
    resumed.load(saved)
    assert resumed.train(range(stop, S)) == expected
    assert torch.equal(resumed.point(), whole.point())
    found, other = (run.scheduler.state_dict() for run in (resumed, whole))
    assert found["_last_lr"] == other["_last_lr"] == [0.0, 0.0]


def test_the_places_are_what_they_are_called() -> None:
    run = Run(S)
    found = {}
    for step in range(S):
        for name, stop in WHERE.items():
            if step == stop:
                ensemble = run.scheduler.state_dict()["ensemble"]
                entry = ensemble["hyperparameters"]["lr/0"]
                assert ensemble["step"] not in (0, ensemble["cycle_end"]), "inside a cycle"
                heard = entry["num_told"] > 0.0
                resume = entry["resume_step"]
                found[name] = (entry["climbing"], resume >= step, heard, ensemble["frozen"])
        run.train(range(step, step + 1))
    assert found == {
        "the climb": (1.0, False, False, False),
        "settling": (0.0, True, False, False),
        "the hold": (0.0, False, True, False),
        "the anneal": (0.0, False, True, True),
    }


def test_without_the_signals_memory_it_is_another_run() -> None:
    """Negative control."""
    whole = Run(S)
    whole.train(range(160))
    saved = copy.deepcopy(whole.state())
    del saved["scheduler"]["ensemble"]["signal"]
    expected = whole.train(range(160, S))
    resumed = Run(S)
    resumed.load(saved)
    assert resumed.train(range(160, S)) != expected
    assert not torch.equal(resumed.point(), whole.point())


def test_states_differ_over_time() -> None:
    run = Run(S)
    states = []
    for start in range(0, S - 75, 75):
        run.train(range(start, start + 75))
        states.append(copy.deepcopy(run.scheduler.state_dict()["ensemble"]["signal"]))
    recents = [state["trails"][0]["recent"][0] for state in states]
    assert not torch.equal(recents[0], recents[1])
    assert torch.equal(recents[2], recents[3]), "nothing is followed in the anneal"


def test_an_anneal_that_was_called_for_goes_on() -> None:
    whole = Run(None)
    whole.train(range(50))
    whole.scheduler.anneal(40)
    whole.train(range(50, 60))
    saved = through_a_file(whole.state())
    resumed = Run(None)
    resumed.load(saved)
    assert resumed.train(range(60, 90)) == whole.train(range(60, 90))
    assert torch.equal(resumed.point(), whole.point())
    assert resumed.scheduler.get_last_lr() == [0.0, 0.0]
    with pytest.raises(hdet.errors.UsageError, match="since step 50"):
        resumed.scheduler.anneal(5)


def test_a_run_that_was_cut_short_ends_where_it_would_have() -> None:
    whole = Run(S)
    whole.train(range(50))
    whole.scheduler.anneal(40)
    whole.train(range(50, 60))
    saved = through_a_file(whole.state())
    resumed = Run(S)
    with pytest.warns(hdet.HDETWarning, match="total_steps=400 gives way to total_steps=90"):
        resumed.load(saved)
    assert resumed.train(range(60, 90)) == whole.train(range(60, 90))
    for run in (resumed, whole):
        with pytest.raises(hdet.errors.UsageError, match="total_steps is 90"):
            run.scheduler.step()


def test_the_length_of_the_saved_run_counts() -> None:
    whole = Run(S)
    whole.train(range(50))
    resumed = Run(7 * S)
    saved = copy.deepcopy(whole.state())
    with pytest.warns(hdet.HDETWarning, match=r"total_steps=2800 gives way to total_steps=400"):
        resumed.load(saved)
    resumed.load(saved)  # once
    assert resumed.train(range(50, S)) == whole.train(range(50, S))
    with pytest.raises(hdet.errors.UsageError, match=f"total_steps is {S}"):
        resumed.scheduler.step()


@pytest.mark.parametrize(("own", "saved"), [(S, None), (None, S)])
def test_a_length_against_none_is_warned_of_too(own: int | None, saved: int | None) -> None:
    state = Run(saved).state()
    with pytest.warns(hdet.HDETWarning, match=f"with total_steps={saved}, or end it elsewhere"):
        Run(own).load(state)


def test_per_group_and_tensor_rates_go_on_too() -> None:
    def build() -> Run:
        run = Run(S, per_group=True)
        run.optimizer = torch.optim.AdamW(
            [
                {"params": run.model[0].parameters(), "lr": torch.tensor(1e-3)},
                {"params": run.model[2].parameters(), "lr": torch.tensor(1e-4)},
            ],
            foreach=False,
        )
        run.scheduler = hdet.AutoLR(run.optimizer, S, per_group=True, anneal=0.5)
        return run

    whole, resumed = build(), build()
    whole.train(range(120))
    resumed.load(through_a_file(whole.state()))
    assert resumed.train(range(120, S)) == whole.train(range(120, S))
    assert torch.equal(resumed.point(), whole.point())


@pytest.mark.parametrize("stop", [6, 120, 201])
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_inside_a_cycle_goes_on_alike(stop: int, how: str) -> None:
    run = Run(S)
    run.train(range(stop))
    clone = copy.deepcopy(run) if how == "deepcopy" else pickle.loads(pickle.dumps(run))
    before = run.point()
    expected = run.train(range(stop, S))
    assert torch.equal(clone.point(), before), "a copy does not follow the original"
    assert clone.train(range(stop, S)) == expected
    assert torch.equal(clone.point(), run.point())


def test_a_copy_with_a_probe_can_be_made() -> None:
    model = model_of()
    optimizer = optimizer_of(model)
    scheduler = hdet.AutoLR(optimizer, S, hdet.Probe(model, [torch.ones(2, 4).double()]))
    clone = pickle.loads(pickle.dumps((model, optimizer, scheduler)))
    assert clone[2].ensemble.signal._trails[0].params[0] is clone[0][0].weight


def damaged(**changes: Any) -> dict[str, Any]:
    run = Run(S)
    run.train(range(20))
    state = copy.deepcopy(run.scheduler.state_dict())
    ensemble = state["ensemble"]
    for key, value in changes.items():
        place = ensemble["signal"] if key in ("trails", "samples", "seen") else ensemble
        place[key] = value
    return state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signal": None}, "state.'signal'. must be an instance of dict"),
        ({"trails": []}, "averages of 2 parameter groups"),
        ({"trails": [None, None]}, "must be an instance of dict"),
        ({"trails": [{"mass": -1.0}, {}]}, "mass must be a finite number"),
        (
            {"trails": [{"mass": 0.0, "pending": 0.0}, {}]},
            "recent must have the parameters' shapes",
        ),
        ({"samples": 3}, "'samples'. must be an instance of list"),
        ({"seen": -1}, "'seen'. must be an integer >= 0"),
        ({"cycle_end": 20}, "'cycle_end'. must be an integer >= 21, got 20"),
        ({"cycle": None}, "'cycle'. must be an integer"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(
    changes: dict[str, Any], message: str
) -> None:
    run = Run(S)
    run.train(range(30))
    twin = copy.deepcopy(run)
    with pytest.raises(HDETError, match=message) as caught:
        run.scheduler.load_state_dict(damaged(**changes))
    assert "\n" not in str(caught.value)
    assert run.train(range(30, 90)) == twin.train(range(30, 90))


@pytest.mark.parametrize("key", ["ensemble", "_anneal_start", "_scales", "last_epoch"])
def test_a_state_of_another_scheduler_is_refused(key: str) -> None:
    state = damaged()
    del state[key]
    with pytest.raises(HDETError, match=f"an? .*AutoLR's, got one without .*{key}"):
        Run(S).scheduler.load_state_dict(state)


def test_a_state_of_another_models_shapes_is_refused() -> None:
    model = torch.nn.Linear(5, 1).double()
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
    with pytest.raises(HDETError, match=r"shapes \[\(1, 5\)\], got"):
        hdet.AutoLR(optimizer, S).load_state_dict(damaged())


class TestVersionOne:
    """States of before there were signals with a memory."""

    def scheduler_of(self) -> hdet.OneCycleLR:
        param = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
        return hdet.OneCycleLR(
            optimizer,
            0.1,
            total_steps=40,
            spread_ratio=0.2,
            cycle_steps=5,
            auto_lr=True,
            replicas=hdet.VirtualReplicas(3),
        )

    def run(self, scheduler: hdet.OneCycleLR, steps: range) -> list[Any]:
        rates = []
        for step in steps:
            scheduler.optimizer.step()
            scheduler.step([1.0, 1.1 + 0.01 * step, 0.9])
            rates += scheduler.get_last_lr()
        return rates

    def test_they_load_and_go_on_as_they_would_have(self) -> None:
        whole = self.scheduler_of()
        self.run(whole, range(10))
        state = copy.deepcopy(whole.state_dict())
        old = state["ensemble"]
        assert old["version"] == 2
        old["version"] = 1
        for key in ("cycle", "cycle_end", "signal", "frozen", "in_charge", "guard"):
            del old[key]
        assert set(old) == {
            "version",
            "step",
            "converged_step",
            "num_replicas",
            "controlled",
            "hyperparameters",
            "plan",
        }
        resumed = self.scheduler_of()
        resumed.load_state_dict(state)
        assert resumed.ensemble.num_steps == 10
        assert self.run(resumed, range(10, 40)) == self.run(whole, range(10, 40))

    def test_later_versions_do_not(self) -> None:
        state = self.scheduler_of().state_dict()
        state["ensemble"]["version"] = 3
        with pytest.raises(HDETError, match="version 3"):
            self.scheduler_of().load_state_dict(state)


class TestWithoutEvidence:
    """States of version 2 of before evidence was pooled over cycles."""

    POOLED = ("num_told", "imbalance", "significance")

    def saved(self) -> tuple[Run, dict[str, Any]]:
        whole = Run(S)
        whole.train(range(WHERE["the hold"]))
        return whole, copy.deepcopy(whole.state())

    def entries(self, state: dict[str, Any]) -> list[dict[str, float]]:
        ensemble = state["scheduler"]["ensemble"]
        assert ensemble["version"] == 2
        return list(ensemble["hyperparameters"].values())

    def gone_on(self, state: dict[str, Any]) -> tuple[Run, list[list[float]]]:
        run = Run(S)
        run.train(range(3))
        run.load(state)
        return run, run.train(range(WHERE["the hold"], S))

    def test_they_load_and_start_with_none(self) -> None:
        _, old = self.saved()
        for entry in self.entries(old):
            assert entry["num_told"] > 0.0, "there is something to lose"
            for key in self.POOLED:
                del entry[key]
        run = Run(S)
        run.load(old)
        for found, entry in zip(
            run.scheduler.ensemble.controller_states.values(), self.entries(old), strict=True
        ):
            assert [found[key] for key in self.POOLED] == [0.0] * 3
            assert found["quiet_cycles"] == entry["quiet_cycles"]
            assert found["resume_step"] == entry["resume_step"]

    def test_they_go_on_as_a_run_that_has_heard_nothing(self) -> None:
        _, old = self.saved()
        fresh = copy.deepcopy(old)
        for entry, other in zip(self.entries(old), self.entries(fresh), strict=True):
            for key in self.POOLED:
                del entry[key]
                other[key] = 0.0
        assert self.gone_on(old)[1] == self.gone_on(fresh)[1]

    def test_evidence_is_part_of_a_state(self) -> None:
        """Negative control: with what was heard the rates are others, to the last bit."""
        whole, state = self.saved()
        expected = whole.train(range(WHERE["the hold"], S))
        assert self.gone_on(copy.deepcopy(state))[1] == expected
        for entry in self.entries(state):
            entry.update(dict.fromkeys(self.POOLED, 0.0))
        assert self.gone_on(state)[1] != expected


def test_saving_alone_changes_nothing() -> None:
    quiet, saving = Run(S), Run(S)
    quiet.train(range(S))
    for step in range(S):
        saving.train(range(step, step + 1))
        saving.state()
    assert torch.equal(quiet.point(), saving.point())
