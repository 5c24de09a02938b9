"""`hdet.OneCycleLR`: PyTorch's scheduler when switched off, Algorithm 1 when on."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import hdet
from tests import reference

TorchOneCycle = lr_scheduler.OneCycleLR


def optimizer_of(
    kind: str = "sgd", groups: int = 2, *, tensor_lr: bool = False
) -> torch.optim.Optimizer:
    lr: Any = torch.tensor(0.05) if tensor_lr else 0.05
    members = [{"params": [torch.nn.Parameter(torch.ones(3))]} for _ in range(groups)]
    if kind == "sgd":
        return torch.optim.SGD(members, lr=lr, momentum=0.9)
    if kind == "plain-sgd":
        return torch.optim.SGD(members, lr=lr)
    return torch.optim.AdamW(members, lr=lr, foreach=False)


def group_view(optimizer: torch.optim.Optimizer) -> list[tuple[Any, ...]]:
    return [(float(g["lr"]), g.get("momentum"), g.get("betas")) for g in optimizer.param_groups]


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


def exploring(n: int, **overrides: Any) -> tuple[torch.optim.Optimizer, hdet.OneCycleLR]:
    optimizer = optimizer_of()
    settings: dict[str, Any] = {
        "max_lr": [0.3, 0.1],
        "total_steps": 60,
        "spread_ratio": 0.2,
        "cycle_steps": 10,
        "replicas": hdet.VirtualReplicas(n),
        "seed": 3,
    }
    return optimizer, hdet.OneCycleLR(optimizer, **{**settings, **overrides})


def planted_losses(step: int, rates: list[list[float]]) -> list[float]:
    """A preference for higher rates, more so in group 0, with a wobble that can overrule it."""
    first, second = rates
    return [
        2.0 - 0.3 * a - 0.1 * b + 2e-4 * ((step * 7 + r * 3) % 5)
        for r, (a, b) in enumerate(zip(first, second, strict=True))
    ]


class TestAlgorithm1:
    @pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
    @pytest.mark.parametrize(
        ("total", "cycle", "warmup"),
        [
            (60, 10, None),
            (60, 10, 0),
            (60, 10, 20),
            (60, 10, 25),
            (57, 10, 20),
            (57, 8, 19),
            (60, 1, 30),
            (60, 7, 59),
            (60, 100, 10),
        ],
    )
    def test_every_rate_equals_the_reference(
        self, n: int, total: int, cycle: int, warmup: int | None
    ) -> None:
        self.check(n, total, cycle, warmup)

    def test_the_printed_decay_equals_the_reference(self) -> None:
        self.check(4, 60, 10, 20, literal=True)

    @pytest.mark.parametrize("n", [2, 4])
    @pytest.mark.parametrize("warmup", [0, 20, 25])
    def test_pytorchs_default_factors_equal_the_reference_with_its_rescue(
        self, n: int, warmup: int
    ) -> None:
        """A floor 250 000 times down within four cycles: here Eq. 7 as printed goes below zero."""
        self.check(n, 60, 10, warmup, f_div=25.0, f_final=1e4, rescue=True)

    def check(
        self,
        n: int,
        total: int,
        cycle: int,
        warmup: int | None,
        *,
        literal: bool = False,
        f_div: float = 4.0,
        f_final: float = 5.0,
        rescue: bool = False,
    ) -> None:
        expected = reference.algorithm_1(
            num_steps=total,
            total_steps=total,
            max_lrs=[0.3, 0.1],
            n=n,
            alpha=0.2,
            cycle_steps=cycle,
            warmup_steps=warmup,
            losses=planted_losses,
            permutation=lambda c, g: hdet.functional.permutation(3, c, g, n).tolist(),
            sigma=0.02,
            literal=literal,
            f_div=f_div,
            f_final=f_final,
            rescue=rescue,
        )
        assert all(rate > 0 for rates in expected for own in rates for rate in own)
        control = {} if warmup is None else {"auto_lr": True, "warmup_steps": warmup}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hdet.HDETWarning)  # one replica, or a long cycle
            optimizer, scheduler = exploring(
                n,
                total_steps=total,
                cycle_steps=cycle,
                temperature=0.02,
                literal_decay=literal,
                div_factor=f_div,
                final_div_factor=f_final,
                **control,
            )
        moved = 0.0
        for step in range(total + 1):
            rates = [
                [scheduler.ensemble.replica_values(r)[f"lr/{g}"] for r in range(n)]
                for g in range(2)
            ]
            for own, other in zip(rates, expected[step], strict=True):
                assert own == pytest.approx(other, rel=1e-9, abs=0), step
            moved = max(moved, abs(rates[0][0] - rates[0][-1]))
            if step < total:
                losses = planted_losses(step, rates)
                optimizer.step()
                scheduler.step(losses if n > 1 else losses[0])
        assert n == 1 or moved > 1e-3, "the replicas never had different rates"

    def test_the_corrected_decay_runs_the_last_cycle_at_the_floor(self) -> None:
        optimizer, scheduler = exploring(4, auto_lr=True, warmup_steps=20)
        for _ in range(59):
            optimizer.step()
            scheduler.step([1.0] * 4)
        base = scheduler.ensemble.base_values
        assert base["lr/0"] == pytest.approx(0.3 / 25e4, rel=1e-9)
        assert base["lr/1"] == pytest.approx(0.1 / 25e4, rel=1e-9)

    def test_momentum_keeps_cycling_under_the_controller(self) -> None:
        plain = optimizer_of()
        theirs = TorchOneCycle(plain, [0.3, 0.1], total_steps=60)
        optimizer, scheduler = exploring(4, auto_lr=True, warmup_steps=20)
        for _ in range(60):
            plain.step()
            theirs.step()
            optimizer.step()
            scheduler.step([1.0] * 4)
            momenta = [g["momentum"] for g in optimizer.param_groups]
            assert momenta == [g["momentum"] for g in plain.param_groups]

    def test_auto_lr_that_never_starts_is_the_plain_schedule_and_warns(self) -> None:
        with pytest.warns(hdet.HDETWarning, match="never starts"):
            optimizer, scheduler = exploring(2, auto_lr=True, warmup_steps=60)
        for step in range(59):
            optimizer.step()
            scheduler.step([1.0, 1.0])
            assert scheduler.get_last_lr()[0] == pytest.approx(
                reference.one_cycle(step + 1, 0.3, 60)
            )

    def test_a_controller_without_a_spread_only_decays(self) -> None:
        optimizer = optimizer_of()
        with pytest.warns(hdet.HDETWarning, match="nothing to compare, because spread_ratio is 0"):
            scheduler = hdet.OneCycleLR(
                optimizer, 0.3, total_steps=60, cycle_steps=10, auto_lr=True, warmup_steps=30
            )
        held = []
        for _ in range(45):
            optimizer.step()
            scheduler.step(0.5)
            held.append(scheduler.get_last_lr()[0])
        assert held[28] == pytest.approx(reference.one_cycle(29, 0.3, 60))
        assert held[29] == held[35] < held[28]  # at step 30 the controller decays what was in use


class TestConvergeAtTheEnd:
    def test_forgetting_it_warns_once_when_the_state_is_saved(self) -> None:
        optimizer, scheduler = exploring(2, total_steps=25)
        for _ in range(25):
            optimizer.step()
            scheduler.step()
        with pytest.warns(hdet.HDETWarning, match="5 steps after the last converge"):
            scheduler.state_dict()
        scheduler.state_dict()

    def test_converging_first_does_not_warn(self) -> None:
        optimizer, scheduler = exploring(2, total_steps=25)
        for _ in range(25):
            optimizer.step()
            scheduler.step()
        scheduler.converge()
        scheduler.state_dict()


class TestState:
    def run(self, scheduler: hdet.OneCycleLR, steps: range) -> list[dict[str, float]]:
        seen = []
        for step in steps:
            values = [scheduler.ensemble.replica_values(r) for r in range(4)]
            rates = [[own[f"lr/{g}"] for own in values] for g in range(2)]
            scheduler.optimizer.step()
            scheduler.step(planted_losses(step, rates))
            seen += [scheduler.ensemble.replica_values(r) for r in range(4)]
        return seen

    def test_resumed_at_a_converge_equals_uninterrupted(self) -> None:
        settings: dict[str, Any] = {"auto_lr": True, "warmup_steps": 20, "temperature": 0.02}
        _, whole = exploring(4, **settings)
        self.run(whole, range(40))
        buffer = io.BytesIO()
        torch.save(whole.state_dict(), buffer)
        buffer.seek(0)
        _, resumed = exploring(4, **settings)
        resumed.load_state_dict(torch.load(buffer, weights_only=True))
        rest = self.run(whole, range(40, 60))
        assert self.run(resumed, range(40, 60)) == rest
        _, fresh = exploring(4, **settings)  # negative control
        assert self.run(fresh, range(40, 60)) != rest

    @pytest.mark.parametrize("clone", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
    def test_a_copy_goes_on_alone(self, clone: Any) -> None:
        _, scheduler = exploring(4, auto_lr=True, warmup_steps=20)
        self.run(scheduler, range(30))
        other = clone(scheduler)
        assert other.optimizer is not scheduler.optimizer
        assert self.run(other, range(30, 60)) == self.run(scheduler, range(30, 60))

    def test_state_is_plain_and_holds_no_replicas_rate(self) -> None:
        _, scheduler = exploring(4)
        self.run(scheduler, range(20))
        state = scheduler.state_dict()
        assert state["_last_lr"] == list(scheduler.ensemble.base_values.values())

        def plain(value: object) -> bool:
            if isinstance(value, dict):
                return all(plain(own) for own in value.values())
            if isinstance(value, list | tuple):
                return all(plain(own) for own in value)
            return value is None or isinstance(value, bool | int | float | str)

        assert plain(state)

    def test_a_plain_run_goes_on_with_a_spread(self) -> None:
        optimizer = optimizer_of()
        plain = TorchOneCycle(optimizer, [0.3, 0.1], total_steps=60)
        for _ in range(30):
            optimizer.step()
            plain.step()
        _, scheduler = exploring(4)
        scheduler.load_state_dict(plain.state_dict())
        assert scheduler.ensemble.num_steps == 30
        values = scheduler.ensemble.replica_values(0)["lr/0"]
        assert values != pytest.approx(reference.one_cycle(30, 0.3, 60))
        assert scheduler.ensemble.base_values["lr/0"] == pytest.approx(
            reference.one_cycle(30, 0.3, 60)
        )

    def test_inside_sequential_lr_with_a_spread(self) -> None:
        optimizer = optimizer_of()
        warmup = lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=5)
        ours = hdet.OneCycleLR(
            optimizer,
            [0.3, 0.1],
            total_steps=20,
            spread_ratio=0.2,
            cycle_steps=5,
            auto_lr=True,
            warmup_steps=10,
            replicas=hdet.VirtualReplicas(2),
        )
        chain = lr_scheduler.SequentialLR(optimizer, [warmup, ours], [5])
        for step in range(20):
            if step >= 5:
                ours.ensemble.observe([1.0, 2.0])
            optimizer.step()
            chain.step()
        assert ours.ensemble.num_steps == 15
        assert ours.ensemble.base_values["lr/0"] < reference.one_cycle(9, 0.3, 20)
