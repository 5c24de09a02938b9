"""Converge on real processes: what averages, how precisely, and that no memory moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hdet
from hdet.converge.buckets import average_
from hdet.converge.selection import select
from tests.pool import Pool

pytestmark = pytest.mark.distributed


def members_of(rank: int) -> dict[str, torch.Tensor]:
    """Tensors of every kind, different on each rank."""
    g = torch.Generator().manual_seed(100 + rank)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return {
        "float64": draw(7, 3),
        "float32": draw(5, 5).float(),
        "bfloat16": draw(33).bfloat16(),
        "float16": draw(4, 9).half(),
        "scalar": draw(1).float().reshape(()),
        "complex": torch.complex(draw(3, 2), draw(3, 2)),
        "channels_last": draw(2, 3, 4, 5).float().contiguous(memory_format=torch.channels_last),
        "transposed": draw(6, 4).t(),
        "with gaps": draw(8, 6)[:, ::2],
        "long": draw(1000).float(),
    }


def view(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [torch.view_as_real(t) if t.is_complex() else t for t in tensors.values()]


def average_in_small_buckets(rank: int, bucket_bytes: int) -> dict[str, Any]:
    tensors = members_of(rank)
    pointers = [(t.data_ptr(), t.stride()) for t in tensors.values()]
    replicas = hdet.DistributedReplicas()
    sizes: list[int] = []

    def all_reduce(flat: torch.Tensor) -> Any:
        sizes.append(flat.numel() * flat.element_size())
        return replicas.all_reduce(flat)

    average_(
        view(tensors),
        all_reduce,
        weight=1,
        total=replicas.num_replicas,
        bucket_bytes=bucket_bytes,
    )
    assert pointers == [(t.data_ptr(), t.stride()) for t in tensors.values()]
    assert max(sizes) <= max(bucket_bytes, 8)
    return {**tensors, "buckets": torch.tensor(len(sizes))}


@pytest.mark.parametrize("bucket_bytes", [64, 1000, 32 * 2**20])
@pytest.mark.parametrize("size", [2, 3])
def test_every_kind_of_tensor_becomes_its_mean(pool: Pool, size: int, bucket_bytes: int) -> None:
    results = pool.run(average_in_small_buckets, size, bucket_bytes)
    inputs = [members_of(rank) for rank in range(size)]
    for name, first in inputs[0].items():
        wide = torch.complex128 if first.is_complex() else torch.float64
        exact = torch.stack([own[name].to(wide) for own in inputs]).mean(dim=0)
        for result in results:
            assert torch.equal(result[name], results[0][name]), name
            error = (result[name].to(wide) - exact).abs()
            # Sums round by the size of what is summed, which can cancel in the mean.
            size_of_sum = torch.stack([own[name].to(wide).abs() for own in inputs]).amax(dim=0)
            assert bool((error <= 2 * torch.finfo(first.dtype).eps * size_of_sum).all()), name
    if bucket_bytes > 1000:
        assert int(results[0]["buckets"]) == 2  # one a type that sums are kept in


def average_halves(rank: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.randn(4096, generator=torch.Generator().manual_seed(rank)).to(dtype)
    average_([values], hdet.DistributedReplicas().all_reduce, weight=1, total=dist.get_world_size())
    return values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_correct_to_the_last_place(pool: Pool, dtype: torch.dtype) -> None:
    found = pool.run(average_halves, 3, dtype)[0]
    inputs = [torch.randn(4096, generator=torch.Generator().manual_seed(r)) for r in range(3)]
    exact = torch.stack([own.to(dtype).double() for own in inputs]).mean(dim=0)
    below = torch.nextafter(found, torch.full_like(found, -torch.inf)).double()
    above = torch.nextafter(found, torch.full_like(found, torch.inf)).double()
    assert bool(((below < exact) & (exact < above)).all())


class Mixed(nn.Module):
    """Tied, frozen, unused and empty parameters; float, constant and integer buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.tied = nn.Linear(3, 3, bias=False)
        self.tied.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.empty = nn.Parameter(torch.ones(0))
        self.register_buffer("running", torch.zeros(2))
        self.register_buffer("constant", torch.tensor([0.1, 0.2, 0.3]))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.zeros(2, dtype=torch.bool))


def converge_mixed(rank: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ensemble = hdet.Ensemble(
        optimizer, model=model, hyperparameters=[hdet.LearningRate(0, spread_ratio=0.5)]
    )
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.dtype == torch.bool:
                tensor.fill_(rank == 0)
            elif name != "constant":
                tensor.fill_(rank + 1)
    pointers = {name: p.data_ptr() for name, p in model.named_parameters()}
    ensemble.step(1.0)
    ensemble.converge()
    assert pointers == {name: p.data_ptr() for name, p in model.named_parameters()}
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def test_the_rules_for_what_averages(pool: Pool) -> None:
    for rank, found in enumerate(pool.run(converge_mixed, 3)):
        assert bool((found["first.weight"] == 2.0).all())
        assert bool((found["tied.weight"] == 2.0).all()), "tied tensors average once"
        assert found["unused"].tolist() == [2.0, 2.0], "no gradient is no reason to differ"
        assert found["frozen"].tolist() == [rank + 1.0] * 2, "frozen parameters cannot have moved"
        assert found["running"].tolist() == [2.0, 2.0]
        assert torch.equal(found["constant"], torch.tensor([0.1, 0.2, 0.3])), "bit for bit"
        assert int(found["count"]) == 1, "integers come from replica 0"
        assert found["mask"].tolist() == [True, True]


def freeze_inside_a_cycle(rank: int) -> list[list[float]]:
    param = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([param], lr=1.0)
    ensemble = hdet.Ensemble(
        optimizer, hyperparameters=[hdet.LearningRate(0, spread_ratio=0.5)], cycle_steps=2
    )
    seen = []
    for step in range(4):
        param.grad = torch.ones(1) if param.requires_grad else None
        optimizer.step()
        if step == 0:
            param.requires_grad_(requires_grad=False)
        if step == 2:
            param.fill_(float(rank))
        ensemble.step(1.0)
        seen.append(param.tolist())
    return seen


def test_a_parameter_frozen_inside_a_cycle_still_converges_at_its_end(pool: Pool) -> None:
    first, second = pool.run(freeze_inside_a_cycle, 2)
    assert first[0] != second[0]
    assert first[1] == second[1]
    assert [first[3], second[3]] == [[0.0], [1.0]], "from the next cycle on it is skipped"


def unfrozen_later(rank: int) -> list[float]:
    del rank
    param = nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer = torch.optim.SGD([{"params": [param]}], lr=1.0)
    ensemble = hdet.Ensemble(
        optimizer, hyperparameters=[hdet.LearningRate(0, spread_ratio=0.5)], cycle_steps=2
    )
    param.requires_grad_()
    for _ in range(2):
        param.grad = torch.ones(1)
        optimizer.step()
        ensemble.step(1.0)
    return param.tolist()


def test_a_parameter_unfrozen_inside_a_cycle_converges(pool: Pool) -> None:
    first, second = pool.run(unfrozen_later, 2)
    assert first == second == [-1.0]


def with_state(rank: int, gradients: str, weight_decay: float) -> dict[str, torch.Tensor]:
    """Each rank has its own parameters and so, with coupled decay, its own state."""
    param = nn.Parameter(torch.full((3,), 1.0 + rank))
    scalar = nn.Parameter(torch.full((), 1.0 + rank))
    optimizer = torch.optim.Adam([param, scalar], lr=0.1, weight_decay=weight_decay)
    ensemble = hdet.Ensemble(
        optimizer,
        hyperparameters=[hdet.LearningRate(0, spread_ratio=0.5)],
        cycle_steps=2,
        replicas=hdet.DistributedReplicas(gradients=gradients),
    )
    for _ in range(2):
        for own in (param, scalar):
            own.grad = torch.full_like(own, 1.0 + (rank if gradients == "local" else 0))
        optimizer.step()
        ensemble.step(1.0)
    return {
        "param": param.detach(),
        "moment": optimizer.state[param]["exp_avg"],
        "scalar moment": optimizer.state[scalar]["exp_avg"],
        "step": optimizer.state[param]["step"],
    }


@pytest.mark.parametrize(
    ("gradients", "weight_decay"), [("local", 0.0), ("local", 0.1), ("shared", 0.1)]
)
def test_state_that_differs_is_averaged(pool: Pool, gradients: str, weight_decay: float) -> None:
    first, second = pool.run(with_state, 2, gradients, weight_decay)
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert float(first["step"]) == 2.0


def count_messages(rank: int, weight_decay: float) -> int:
    del rank
    param = nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.AdamW([param], lr=0.1, weight_decay=weight_decay)
    replicas = hdet.DistributedReplicas()
    sent: list[int] = []
    send = replicas.all_reduce
    replicas.all_reduce = lambda flat: (sent.append(flat.numel()), send(flat))[1]
    ensemble = hdet.Ensemble(
        optimizer,
        hyperparameters=[hdet.LearningRate(0, spread_ratio=0.5)],
        cycle_steps=1,
        replicas=replicas,
    )
    param.grad = torch.ones(1000)
    optimizer.step()
    ensemble.step(1.0)
    return sum(sent)


def test_state_that_cannot_differ_is_not_sent(pool: Pool) -> None:
    """AdamW's decay is decoupled: its moments see gradients alone, and those are shared."""
    assert pool.run(count_messages, 2, 0.1) == [1000, 1000]


def sparse(rank: int) -> str:
    del rank
    param = nn.Parameter(torch.ones(3).to_sparse())
    optimizer = torch.optim.SGD([param], lr=0.1)
    ensemble = hdet.Ensemble(
        optimizer, hyperparameters=[hdet.LearningRate(0, spread_ratio=0.5)], cycle_steps=1
    )
    try:
        ensemble.step(1.0)
    except hdet.errors.InvalidTypeError as error:
        return str(error)
    return "no error"


def test_sparse_parameters_are_refused(pool: Pool) -> None:
    for message in pool.run(sparse, 2):
        assert "dense (strided) tensor" in message
        assert "sparse_coo" in message


def test_selection_lists_tied_storage_once() -> None:
    base = torch.arange(6.0)
    first, second = nn.Parameter(base[:3]), nn.Parameter(base[:3])
    optimizer = torch.optim.SGD([first, second], lr=0.1)
    assert len(select(optimizer, None, set()).parameters) == 1


def test_fingerprint_depends_on_shape_type_and_stride() -> None:
    def fingerprint(tensor: torch.Tensor) -> int:
        return select(torch.optim.SGD([nn.Parameter(tensor)], lr=0.1), None, set()).fingerprint()

    kinds = [torch.ones(2, 3), torch.ones(3, 2), torch.ones(2, 3).double(), torch.ones(3, 2).t()]
    assert len({fingerprint(kind) for kind in kinds}) == len(kinds)
