"""The keystone: virtual replicas give the trajectory of spawned gloo processes under DDP."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import training
from tests.pool import Pool

pytestmark = pytest.mark.distributed

NUM_STEPS = 35  # three cycles and a half
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def compare(
    pool: Pool,
    optimizer: str,
    num_replicas: int,
    dtype: torch.dtype,
    *,
    batch_norm: bool = False,
    **settings: Any,
) -> tuple[float, float, float]:
    """Relative errors of the replicas, of the converged point and of the base values."""
    virtual = training.train_virtual(
        optimizer, num_replicas, dtype, NUM_STEPS, batch_norm=batch_norm, **settings
    )
    ranks = pool.run(
        training.train_process,
        num_replicas,
        optimizer,
        num_replicas,
        dtype,
        NUM_STEPS,
        batch_norm,
        "shared",
        settings,
    )
    replicas = torch.stack([rank["replica"] for rank in ranks])
    assert all(torch.equal(rank["converged"], ranks[0]["converged"]) for rank in ranks)
    assert all(rank["base"] == ranks[0]["base"] for rank in ranks)
    assert len({tuple(vector.tolist()) for vector in replicas}) == num_replicas, "never apart"
    base = torch.tensor(list(ranks[0]["base"].values()), dtype=torch.float64)
    virtual_base = torch.tensor(list(virtual["base"].values()), dtype=torch.float64)
    return (
        relative_error(virtual["replicas"], replicas),
        relative_error(virtual["converged"], ranks[0]["converged"]),
        relative_error(virtual_base, base),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_replicas", [2, 3, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_virtual_replicas_equal_processes(
    pool: Pool, optimizer: str, num_replicas: int, dtype: torch.dtype
) -> None:
    errors = compare(pool, optimizer, num_replicas, dtype)
    assert max(errors) <= TOLERANCE[dtype]


@pytest.mark.parametrize("optimizer", sorted(set(training.OPTIMIZERS) - {"sgd", "adam", "adamw"}))
def test_virtual_replicas_equal_processes_for_every_optimizer(pool: Pool, optimizer: str) -> None:
    errors = compare(pool, optimizer, 3, torch.float64)
    assert max(errors) <= TOLERANCE[torch.float64]


def test_virtual_replicas_equal_processes_with_batch_norm(pool: Pool) -> None:
    # Not Adam: a bias ahead of the norm has no gradient but rounding, which Adam would amplify.
    errors = compare(pool, "sgd", 4, torch.float64, batch_norm=True)
    assert max(errors) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_virtual_replicas_equal_processes_while_momentum_cycles(pool: Pool, optimizer: str) -> None:
    errors = compare(pool, optimizer, 3, torch.float64, cycle_momentum=True)
    assert max(errors) <= TOLERANCE[torch.float64]


def test_the_comparison_can_fail(pool: Pool) -> None:
    """Negative control: the two-copy form of an optimiser with weight decay is close, not equal."""
    virtual = training.train_virtual("adamw", 3, torch.float64, NUM_STEPS, exact=False)
    ranks = pool.run(
        training.train_process, 3, "adamw", 3, torch.float64, NUM_STEPS, False, "shared", {}
    )
    error = relative_error(virtual["converged"], ranks[0]["converged"])
    assert 1e-12 < error < 1e-3
