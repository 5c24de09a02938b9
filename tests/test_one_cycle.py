"""`hdet.OneCycleLR` switched off: PyTorch's scheduler, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import hdet
from tests.two_groups import group_view, optimizer_of

TorchOneCycle = lr_scheduler.OneCycleLR

CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "defaults": ("sgd", {"max_lr": 0.3, "total_steps": 50}),
    "adam betas": ("adamw", {"max_lr": 0.3, "total_steps": 50}),
    "max_lr list": ("sgd", {"max_lr": [0.3, 0.1], "total_steps": 50}),
    "epochs": ("sgd", {"max_lr": 0.3, "epochs": 5, "steps_per_epoch": 10}),
    "three phases": ("sgd", {"max_lr": 0.3, "total_steps": 50, "three_phase": True}),
    "linear": ("sgd", {"max_lr": 0.3, "total_steps": 50, "anneal_strategy": "linear"}),
    "no momentum": ("plain-sgd", {"max_lr": 0.3, "total_steps": 50, "cycle_momentum": False}),
    "momentum lists": (
        "sgd",
        {
            "max_lr": 0.3,
            "total_steps": 50,
            "base_momentum": [0.8, 0.7],
            "max_momentum": [0.9, 0.99],
        },
    ),
    "factors": (
        "adamw",
        {"max_lr": 0.3, "total_steps": 50, "div_factor": 7.0, "final_div_factor": 3.0},
    ),
    "pct_start": ("sgd", {"max_lr": 0.3, "total_steps": 50, "pct_start": 0.6}),
}


class TestSwitchedOff:
    @pytest.mark.parametrize("tensor_lr", [False, True])
    @pytest.mark.parametrize("name", CONFIGURATIONS)
    def test_every_rate_and_momentum_is_pytorchs_to_the_last_bit(
        self, name: str, tensor_lr: bool
    ) -> None:
        kind, settings = CONFIGURATIONS[name]
        ours, theirs = (optimizer_of(kind, tensor_lr=tensor_lr) for _ in range(2))
        ours_lr = hdet.OneCycleLR(ours, **settings)
        theirs_lr = TorchOneCycle(theirs, **settings)
        for step in range(51):
            assert group_view(ours) == group_view(theirs), step
            assert ours_lr.get_last_lr() == theirs_lr.get_last_lr()
            if step < 50:
                for optimizer in (ours, theirs):
                    optimizer.step()
                ours_lr.step(torch.tensor(1.0))
                theirs_lr.step()

    def test_arguments_have_pytorchs_order_and_defaults(self) -> None:
        import inspect

        theirs = list(inspect.signature(TorchOneCycle).parameters.values())
        ours = list(inspect.signature(hdet.OneCycleLR).parameters.values())
        for own, other in zip(ours, theirs, strict=False):
            assert (own.name, own.default) == (other.name, other.default)
        assert all(own.kind is own.KEYWORD_ONLY for own in ours[len(theirs) :])

    def test_positional_arguments_mean_the_same(self) -> None:
        args = (0.3, 50, None, None, 0.4, "linear", True, 0.8, 0.9, 10.0, 100.0, False, -1)
        ours, theirs = optimizer_of(), optimizer_of()
        ours_lr, theirs_lr = hdet.OneCycleLR(ours, *args), TorchOneCycle(theirs, *args)
        for _ in range(50):
            ours.step()
            theirs.step()
            ours_lr.step()
            theirs_lr.step()
            assert group_view(ours) == group_view(theirs)

    def test_state_dict_has_pytorchs_entries(self) -> None:
        ours = hdet.OneCycleLR(optimizer_of(), 0.3, total_steps=50).state_dict()
        theirs = TorchOneCycle(optimizer_of(), 0.3, total_steps=50).state_dict()
        del ours["ensemble"]
        assert ours == theirs

    def test_pytorchs_checkpoint_is_welcome(self) -> None:
        optimizer = optimizer_of()
        theirs = TorchOneCycle(optimizer, 0.3, total_steps=50)
        for _ in range(20):
            optimizer.step()
            theirs.step()
        other = optimizer_of()
        ours = hdet.OneCycleLR(other, 0.3, total_steps=50)
        ours.load_state_dict(theirs.state_dict())
        for _ in range(20):
            for scheduler in (theirs, ours):
                scheduler.optimizer.step()
                scheduler.step()
            assert group_view(optimizer) == group_view(other)

    def test_the_next_scheduler_takes_any_rate_that_it_finds(self) -> None:
        """Linear annealing steps below zero after the last step; the next one writes over it."""
        optimizer = optimizer_of()
        for _ in range(2):
            scheduler = hdet.OneCycleLR(
                optimizer, 25.0, total_steps=10, anneal_strategy="linear", spread_ratio=0.0
            )
            assert scheduler.get_last_lr() == [1.0, 1.0]
            for _ in range(10):
                optimizer.step()
                scheduler.step()
            assert scheduler.get_last_lr()[0] < 0

    def test_resume_by_last_epoch(self) -> None:
        def resumed(kind: Any) -> list[float]:
            optimizer = optimizer_of()
            first = kind(optimizer, 0.3, total_steps=50)
            for _ in range(20):
                optimizer.step()
                first.step()
            second = kind(optimizer, 0.3, total_steps=50, last_epoch=first.last_epoch)
            rates = []
            for _ in range(10):
                optimizer.step()
                second.step()
                rates += second.get_last_lr()
            return rates

        assert resumed(hdet.OneCycleLR) == resumed(TorchOneCycle)

    def test_inside_sequential_lr(self) -> None:
        def rates(kind: Any) -> list[Any]:
            optimizer = optimizer_of()
            warmup = lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=5)
            chain = lr_scheduler.SequentialLR(
                optimizer, [warmup, kind(optimizer, 0.3, total_steps=20)], [5]
            )
            seen = []
            for _ in range(20):
                seen.append(group_view(optimizer))
                optimizer.step()
                chain.step()
            return seen

        assert rates(hdet.OneCycleLR) == rates(TorchOneCycle)

    def test_inside_chained_scheduler(self) -> None:
        def rates(kind: Any) -> list[Any]:
            optimizer = optimizer_of()
            chain = lr_scheduler.ChainedScheduler([kind(optimizer, 0.3, total_steps=20)])
            seen = []
            for _ in range(15):
                optimizer.step()
                chain.step()
                seen.append(group_view(optimizer))
            return seen

        assert rates(hdet.OneCycleLR) == rates(TorchOneCycle)

    def test_the_deprecated_epoch_argument_still_jumps(self) -> None:
        ours, theirs = optimizer_of(), optimizer_of()
        ours_lr = hdet.OneCycleLR(ours, 0.3, total_steps=50)
        theirs_lr = TorchOneCycle(theirs, 0.3, total_steps=50)
        ours.step()
        theirs.step()
        with pytest.warns(UserWarning, match="epoch"):
            ours_lr.step(17)
        with pytest.warns(UserWarning, match="epoch"):
            theirs_lr.step(17)
        assert group_view(ours) == group_view(theirs)

    def test_one_step_too_many_raises_pytorchs_error(self) -> None:
        optimizer = optimizer_of()
        scheduler = hdet.OneCycleLR(optimizer, 0.3, total_steps=3)
        for _ in range(3):
            optimizer.step()
            scheduler.step()
        with pytest.raises(ValueError, match="Tried to step 4 times"):
            scheduler.step()

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({}, "total_steps OR"),
            ({"total_steps": 0}, "positive integer total_steps"),
            ({"total_steps": 2.5}, "positive integer total_steps"),
            ({"epochs": 0, "steps_per_epoch": 1}, "positive integer epochs"),
            ({"epochs": 1, "steps_per_epoch": -1}, "positive integer steps_per_epoch"),
            ({"total_steps": 10, "pct_start": 1.1}, "pct_start"),
            ({"total_steps": 10, "anneal_strategy": "exponential"}, "anneal_strategy"),
        ],
    )
    def test_pytorchs_own_errors_stand(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            hdet.OneCycleLR(optimizer_of(), 0.3, **settings)

    def test_momentum_is_required_for_cycling_it(self) -> None:
        params = [torch.nn.Parameter(torch.ones(1))]
        with pytest.raises(ValueError, match="momentum"):
            hdet.OneCycleLR(torch.optim.Adagrad(params), 0.3, total_steps=10)

    def test_warns_like_pytorch_when_stepped_before_the_optimizer(self) -> None:
        scheduler = hdet.OneCycleLR(optimizer_of(), 0.3, total_steps=10)
        with pytest.warns(UserWarning, match="before `optimizer.step"):
            scheduler.step()

    def test_last_rates_are_copies_and_tensor_rates_keep_their_storage(self) -> None:
        optimizer = optimizer_of("adamw", tensor_lr=True)
        tensors = [group["lr"] for group in optimizer.param_groups]
        scheduler = hdet.OneCycleLR(optimizer, 0.3, total_steps=10)
        optimizer.step()
        scheduler.step()
        scheduler.get_last_lr()[0].fill_(9.0)
        for group, tensor in zip(optimizer.param_groups, tensors, strict=True):
            assert group["lr"] is tensor
            assert float(tensor) != 9.0


@pytest.mark.parametrize("stop", [5, 6, 11])
def test_a_switched_off_scheduler_goes_on_after_its_first_cycle(stop: int) -> None:
    def build() -> tuple[torch.optim.Optimizer, hdet.OneCycleLR]:
        optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1, momentum=0.9)
        return optimizer, hdet.OneCycleLR(optimizer, 0.1, total_steps=20, cycle_steps=5)

    optimizer, scheduler = build()
    for _ in range(stop):
        optimizer.step()
        scheduler.step()
    assert scheduler.ensemble.num_cycles == stop // 5
    state = scheduler.state_dict()
    old = {**state, "ensemble": {**state["ensemble"], "cycle": 0, "cycle_end": 5}}
    for saved in (state, old):  # older releases did not count on
        _, resumed = build()
        resumed.load_state_dict(saved)
        assert resumed.get_last_lr() == scheduler.get_last_lr()
        assert resumed.ensemble.num_cycles == stop // 5
