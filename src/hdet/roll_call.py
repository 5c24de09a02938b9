"""Once a cycle every replica says where it stands: the only wait for the device in between."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from hdet import agreement, optimizers, tensors
from hdet.converge import Selection
from hdet.errors import NonFiniteError
from hdet.replicas import AbstractReplicas
from hdet.signals import Intake

logger = logging.getLogger("hdet")


class RollCall(NamedTuple):
    """What all replicas answered, the same on each of them."""

    losses: list[float]
    """Each replica's mean loss; NaN where it has none."""
    statistics: list[list[float]]
    """What the signals say beyond it, one row for each process with a replica that counts."""
    valid: list[bool]
    """Who counts: finite parameters and, where losses were reported, a finite one. Losses that are
    bad everywhere disqualify nobody's parameters."""
    include_state: bool
    """Whether the replicas' optimiser states differ, so that they are averaged too."""
    told: bool
    """Whether any replica reported a loss."""


def roll_call(
    replicas: AbstractReplicas,
    intake: Intake,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    selection: Selection | None,
) -> RollCall:
    """Gather a packed row from each replica; raise where they differ and must not.

    Args:
        replicas: who is asked.
        intake: what the cycle measured.
        optimizer: whose parameters' device the row is packed on.
        step: steps taken so far, which must agree.
        selection: the tensors about to be averaged, whose layout must agree; None if none are.
    """
    num_local = replicas.num_local
    device = optimizers.parameters(optimizer)[0].device
    state_differs = replicas.gradients == "local" or not optimizers.state_ignores_parameters(
        optimizer
    )
    loss_L = intake.measure(device).to(tensors.widest(device))
    finite_L = torch.ones_like(loss_L)
    fingerprint = 0
    if selection is not None:
        finite_L.copy_(replicas.finite(selection.parameters, device))
        fingerprint = selection.fingerprint()
    own = [step, fingerprint, state_differs, intake.num_observed]
    own_L4 = loss_L.new_tensor(own).expand(num_local, 4)
    statistics_K = intake.statistics().to(loss_L).expand(num_local, -1)
    row = torch.cat([own_L4, loss_L[:, None], finite_L[:, None], statistics_K], dim=1)
    rows_R6, statistics_RK = _split(replicas.gather(row).tolist())
    agreement.check_same("the number of steps taken", [int(row[0]) for row in rows_R6])
    if selection is not None and len({row[1] for row in rows_R6}) > 1:
        listings = replicas.gather_objects(selection.describe())
        agreement.check_same("tensors to average", listings)
    if len({row[2] for row in rows_R6}) > 1:
        # Decided per rank, it would leave some waiting for a message that others never send.
        listings = replicas.gather_objects(optimizers.settings(optimizer))
        agreement.check_same("optimizer settings", listings)
        agreement.check_same("averaging the optimizer's state", [bool(row[2]) for row in rows_R6])
    finite = [bool(row[5]) for row in rows_R6]
    sound = [
        ok and (row[3] == 0 or math.isfinite(row[4]))
        for ok, row in zip(finite, rows_R6, strict=True)
    ]
    valid = sound if any(sound) else finite
    # The replicas of one process tell the same sample, which must not count as many.
    heard = [
        statistics_RK[first]
        for first in range(0, len(valid), num_local)
        if any(valid[first : first + num_local])
    ]
    told = any(row[3] > 0 for row in rows_R6)
    include_state = state_differs or not all(valid)
    return RollCall([row[4] for row in rows_R6], heard, valid, include_state, told)


def _split(rows: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
    return [row[:6] for row in rows], [row[6:] for row in rows]


def report_bad(valid: Sequence[bool], step: int) -> None:
    """Log who is left out; raise if nobody is left."""
    if not any(valid):
        raise NonFiniteError(
            f"all {len(valid)} replicas have NaN or infinite parameters at step {step}: the run "
            "has diverged; go back to a checkpoint and lower the rate"
        )
    if not all(valid):
        logger.warning(
            "step %d: replicas %s have a non-finite loss or non-finite parameters; they are left "
            "out of the mean and restored from it",
            step,
            [replica for replica, ok in enumerate(valid) if not ok],
        )
