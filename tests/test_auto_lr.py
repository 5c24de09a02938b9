"""`hdet.AutoLR` as a scheduler of PyTorch's: its conventions, its shape, its arguments."""

from __future__ import annotations

import gc
import inspect
import math
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hdet
from hdet.errors import InvalidValueError, UsageError
from tests import auto
from tests.auto import OPTIMIZERS, Run, loss_of, model_of, optimizer_of


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_finds_a_rate_that_trains(kind: str) -> None:
    run = Run(300, kind)
    before = sum(float(loss_of(run.model, 5000 + step).detach()) for step in range(10))
    rates = run.train(range(300))
    after = sum(float(loss_of(run.model, 5000 + step).detach()) for step in range(10))
    held = rates[149][0]
    assert rates[0][0] == 1e-6
    assert 1e-4 < held < 1.0
    assert after < 0.7 * before
    assert all(math.isfinite(own) and own >= 0.0 for both in rates for own in both)


def test_a_bare_step_and_one_with_the_loss_do_the_same() -> None:
    bare, told = Run(), Run()
    assert bare.train(range(120)) == told.train(range(120), with_loss=True)
    assert torch.equal(bare.point(), told.point())


def test_get_last_lr_is_what_stands_in_the_optimizer() -> None:
    run = Run(kind="SGD")
    for step in range(120):
        assert run.scheduler.get_last_lr() == [g["lr"] for g in run.optimizer.param_groups]
        assert run.scheduler.last_epoch == run.scheduler.ensemble.num_steps == step
        run.train(range(step, step + 1))


def test_tensor_rates_are_filled_in_place_and_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    optimizer = torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": torch.tensor(1e-3)},
            {"params": model[2].parameters(), "lr": torch.tensor(1e-4)},
        ],
        foreach=False,
        capturable=False,
    )
    tensors = [group["lr"] for group in optimizer.param_groups]
    scheduler = hdet.AutoLR(optimizer, total_steps=60, bounds=(1e-6, 1.0))
    for step in range(60):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:  # inside a cycle

            def refuse(*_: Any) -> Any:
                raise AssertionError("waited for the device")

            with monkeypatch.context() as patched:
                for name in ("item", "__float__", "tolist"):
                    patched.setattr(torch.Tensor, name, refuse)
                scheduler.step()
        else:
            scheduler.step()
        for group, tensor in zip(optimizer.param_groups, tensors, strict=True):
            assert group["lr"] is tensor
        assert float(tensors[1]) == pytest.approx(0.1 * float(tensors[0]), rel=1e-6)
    assert [float(tensor) for tensor in tensors] == [0.0, 0.0]


@pytest.mark.parametrize(("anneal", "start"), [(0.5, 60), (0.4, 72), (0.0, 120), (0.999, 0)])
def test_the_anneal_falls_linearly_to_exactly_zero(anneal: float, start: int) -> None:
    run = Run(anneal=anneal)
    rates = [a for a, _ in run.train(range(120))]
    last = run.scheduler.get_last_lr()[0]
    if anneal == 0.0:
        assert last > 0.0
        return
    top = rates[start]
    expected = [top * (120 - step) / (120 - start) for step in range(start, 120)]
    assert rates[start:] == pytest.approx(expected, rel=1e-12)
    assert last == 0.0


def test_nothing_steers_in_the_anneal() -> None:
    run = Run()
    run.train(range(61))
    before = run.scheduler.ensemble.state_dict()["hyperparameters"]
    run.train(range(61, 120))
    after = run.scheduler.ensemble.state_dict()["hyperparameters"]
    for name, entry in before.items():
        assert after[name]["factor"] == entry["factor"]
    assert run.scheduler.ensemble.signal._samples == []


def test_without_a_length_it_holds_until_it_is_told() -> None:
    run = Run(None)
    rates = [a for a, _ in run.train(range(200))]
    top = run.scheduler.get_last_lr()[0]
    run.scheduler.anneal(50)
    assert run.scheduler.get_last_lr()[0] == top
    fallen = [a for a, _ in run.train(range(200, 250))]
    assert fallen == pytest.approx([top * (50 - i) / 50 for i in range(50)])
    assert run.scheduler.get_last_lr() == [0.0, 0.0]
    assert min(rates) == rates[0] == 1e-6
    assert run.scheduler.total_steps is run.scheduler.ensemble.total_steps is None
    with pytest.warns(hdet.HDETWarning, match="ended at step 250 and the rate is 0") as told:
        run.train(range(250, 255))
    assert len(told) == 1
    assert told[0].filename == auto.__file__, "the user's own line"
    assert run.scheduler.get_last_lr() == [0.0, 0.0], "it ends at 0 and stays there"


def test_an_anneal_can_come_early_but_not_twice() -> None:
    run = Run(120)
    run.train(range(30))
    run.scheduler.anneal(10)
    with pytest.raises(UsageError, match=r"the anneal runs since step 30; call it once"):
        run.scheduler.anneal(10)
    run.train(range(30, 40))
    assert run.scheduler.get_last_lr() == [0.0, 0.0]
    assert run.scheduler.total_steps == run.scheduler.ensemble.total_steps == 40
    before = run.point()
    with pytest.raises(UsageError, match=r"called 41 times, and total_steps is 40; .*anneal\(\)"):
        run.train(range(40, 41))
    assert (run.scheduler.last_epoch, run.scheduler.ensemble.num_steps) == (40, 40)
    assert torch.equal(run.point(), before)
    late = Run(120)
    late.train(range(70))
    with pytest.raises(UsageError, match="runs since step 60"):
        late.scheduler.anneal(10)


def test_an_anneal_can_come_late_too() -> None:
    run = Run(60, anneal=0.0)
    run.train(range(50))
    run.scheduler.anneal(30)
    rates = [a for a, _ in run.train(range(50, 80))]
    assert rates == pytest.approx([rates[0] * (30 - i) / 30 for i in range(30)])
    assert run.scheduler.get_last_lr() == [0.0, 0.0]
    with pytest.raises(UsageError, match="total_steps is 80"):
        run.scheduler.step()


def test_one_step_past_the_end_is_an_error() -> None:
    run = Run(20)
    run.train(range(20))
    with pytest.raises(UsageError, match="called 21 times, and total_steps is 20"):
        run.scheduler.step()


@pytest.mark.parametrize("total_steps", [1, 2, 3, 5])
def test_short_runs_end_at_zero(total_steps: int) -> None:
    run = Run(total_steps)
    run.train(range(total_steps))
    assert run.scheduler.get_last_lr() == [0.0, 0.0]


def test_what_it_takes_is_what_its_signature_says() -> None:
    found = list(inspect.signature(hdet.AutoLR).parameters)
    assert found[:3] == ["optimizer", "total_steps", "probe"]
    assert not {"args", "given", "kwargs"} & set(found)
    with pytest.raises(TypeError, match="unexpected keyword argument 'total'"):
        hdet.AutoLR(optimizer_of(model_of()), total=3)


def test_a_subclass_may_take_a_rate() -> None:
    class Started(hdet.AutoLR):
        def __init__(self, optimizer: torch.optim.Optimizer, lr: float) -> None:
            controller = hdet.LongHorizonController(start_value=lr)
            super().__init__(optimizer, controller=controller)

    assert Started(optimizer_of(model_of()), lr=1e-3).get_last_lr()[0] == 1e-3


def test_a_refused_call_leaves_the_optimizer_as_it_was() -> None:
    optimizer = optimizer_of(model_of())
    before = [dict(group) for group in optimizer.param_groups]
    refused: list[dict[str, Any]] = [
        {"seed": "a"},
        {"max_lr": 0.1},
        {"replicas": 3},
        {"anneal": 1.0},
        {"bounds": (1.0, 0.1)},
        {"signal": hdet.TrainingLoss()},
    ]
    for settings in refused:
        with pytest.raises(hdet.HDETError):
            hdet.AutoLR(optimizer, 10, **settings)
        assert [dict(group) for group in optimizer.param_groups] == before, settings
    optimizer.param_groups[1]["lr"] = -1.0
    with pytest.raises(InvalidValueError, match="relative rates"):
        hdet.AutoLR(optimizer, 10)
    assert "initial_lr" not in optimizer.param_groups[0]


def test_a_step_that_moves_nothing_does_not_end_the_climb() -> None:
    """In half precision 1e-6 is below rounding for a long time."""
    param = nn.Parameter(torch.full((8,), 4.0, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([param], lr=0.1)
    scheduler = hdet.AutoLR(optimizer, total_steps=300)
    for _ in range(100):
        param.grad = 0.1 * param.detach()
        optimizer.step()
        scheduler.step()
    assert scheduler.get_last_lr()[0] > 1e-2
    assert float(param.detach().abs().max()) < 4.0


def test_a_checkpoint_of_the_model_may_come_after_the_scheduler() -> None:
    def rates(*, late: bool) -> list[list[float]]:
        run = Run()
        weights = {name: value + 1.0 for name, value in run.model.state_dict().items()}
        if late:
            run.model.load_state_dict(weights)
        else:
            run = Run()
            run.model.load_state_dict(weights)
            run.optimizer = optimizer_of(run.model)
            run.scheduler = hdet.AutoLR(run.optimizer, 120, anneal=0.5)
        return run.train(range(60))

    assert rates(late=True) == rates(late=False)


def test_last_epoch_goes_on_with_the_schedule() -> None:
    run = Run(100)
    run.train(range(80))
    again = hdet.AutoLR(run.optimizer, 100, last_epoch=79, anneal=0.5)
    assert again.last_epoch == 80
    assert again.get_last_lr()[0] == pytest.approx(1e-6 * 20 / 50)
    before = again.ensemble.state_dict()["hyperparameters"]["lr/0"]["factor"]
    for _ in range(20):
        run.optimizer.step()
        again.step()
    assert again.get_last_lr() == [0.0, 0.0]
    assert again.ensemble.state_dict()["hyperparameters"]["lr/0"]["factor"] == before


def test_the_deprecated_epoch_argument_jumps() -> None:
    run = Run(100)
    run.train(range(10))
    run.optimizer.step()
    with pytest.warns(UserWarning, match="epoch"):
        run.scheduler.step(epoch=75)
    held = run.scheduler.ensemble.state_dict()["hyperparameters"]["lr/0"]["factor"]
    assert run.scheduler.get_last_lr()[0] == pytest.approx(held * 25 / 50)


def test_after_a_warmup_in_a_sequence() -> None:
    model = model_of()
    optimizer = optimizer_of(model)
    warmup = lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=10)
    auto = hdet.AutoLR(optimizer, 300, anneal=0.5)
    chain = lr_scheduler.SequentialLR(optimizer, [warmup, auto], [10])
    rates = []
    for step in range(310):
        rates.append([group["lr"] for group in optimizer.param_groups])
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        chain.step()
    assert rates[5] == pytest.approx([5e-4, 5e-5])
    assert rates[10] == [1e-6, 1e-7]
    assert max(a for a, _ in rates) > 1e-3
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]


def test_it_lets_go_of_everything() -> None:
    def run() -> list[weakref.ref[Any]]:
        own = Run(kind="SGD")
        own.train(range(30))
        members = (own.scheduler, own.optimizer, own.model, own.scheduler.ensemble.signal)
        return [weakref.ref(member) for member in members]

    gc.collect()
    gc.disable()
    try:
        assert [reference() for reference in run()] == [None] * 4
    finally:
        gc.enable()


def test_no_cyclic_references() -> None:
    gc.collect()
    param = nn.Parameter(torch.empty(10))
    optimizer = torch.optim.SGD([param], lr=0.5)
    scheduler = hdet.AutoLR(optimizer, 10)
    del scheduler
    assert len(gc.get_referrers(optimizer)) == 0
    gc.collect()
    del optimizer
    assert gc.collect() == 0


def test_a_probe_judges_the_balance() -> None:
    model = model_of()
    optimizer = optimizer_of(model)
    probe = hdet.Probe(lambda step: loss_of(model, step), range(9000, 9020))
    scheduler = hdet.AutoLR(optimizer, 200, probe)
    for step in range(200):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        assert scheduler.get_last_lr()[0] < 1.0
    assert scheduler.get_last_lr() == [0.0, 0.0]
    assert scheduler.ensemble.controller.cycle_growth == 0.25


@pytest.mark.parametrize(("every", "warns"), [(1, False), (2, True), (4, True)])
def test_a_step_for_each_micro_batch_is_noticed_and_harmless(every: int, warns: bool) -> None:
    run = Run(120)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(120):
            (loss_of(run.model, step) / every).backward()
            if step % every == 0:
                run.optimizer.step()
                run.optimizer.zero_grad()
            run.scheduler.step()
            assert run.scheduler.get_last_lr()[0] < 1.0
    told = [str(own.message) for own in caught if "calls of optimizer.step()" in str(own.message)]
    assert len(told) == int(warns)
