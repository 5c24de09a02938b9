"""`Checkpointer`: who writes when, and what all ranks agree to go on from."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hdet import checks, optimizers
from hdet.arguments import checked_optimizer
from hdet.checkpointing import files
from hdet.checkpointing.contents import Contents, check_format, check_object, ensembles_of
from hdet.checkpointing.stopping import StopSignal
from hdet.converge.buckets import Waitable
from hdet.cycle import Ensemble
from hdet.errors import CheckpointError, InvalidTypeError, InvalidValueError, UsageError
from hdet.replicas import everyone

_KEPT = 2

logger = logging.getLogger("hdet")


class Checkpointer:
    """Lets a run outlive killed processes: writes checkpoints, and finds the last whole one.

    ::

        checkpointer = hdet.Checkpointer(
            "run/checkpoints", model=model, optimizer=optimizer, scheduler=scheduler
        )
        for step in range(checkpointer.restore(), total_steps):
            ...
            scheduler.step(loss)
            checkpointer.step()

    A checkpoint is the ensemble's, not one replica's: it is written at the end of a cycle, where
    the replicas have just become one. One that is written elsewhere, by `save` or because of
    SIGTERM, lets them converge first (`hdet.Ensemble.converge`). A run that goes on from it equals,
    to the last bit, the run that wrote it and went on, provided that the script draws the same
    batches.

    Rank 0 writes, to a temporary name that is then renamed; the last two are kept, each beside its
    checksum. Random states are saved for each rank. On SIGTERM, on whichever rank, all ranks write
    a last checkpoint at the same step and leave by ``SystemExit(143)``.

    Args:
        directory: where checkpoints lie: one run's, on a file system that all ranks share.
        every_cycles: how many cycles lie between two checkpoints.
        model: what is trained, in DDP or not.
        optimizer: its optimiser.
        scheduler: `hdet.AutoLR`, `hdet.OneCycleLR`, `hdet.Ensemble`, or torch's SequentialLR of
            them.
        per_rank: names of the ``others`` that every rank has its own of, such as a data loader's
            position. What they hold is gathered: keep it small.
        agree_steps: every how many steps the ranks tell each other whether one has got SIGTERM, by
            one number, read a step later where it comes from an accelerator; 0 leaves SIGTERM
            alone.
        **others: whatever else has ``state_dict`` and ``load_state_dict`` (``scaler=...``,
            ``data=...``), saved as rank 0 has it; a ``torch.Generator`` is always saved for each
            rank.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        every_cycles: int = 1,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        per_rank: Sequence[str] = (),
        agree_steps: int = 1,
        **others: Any,
    ) -> None:
        self._directory = _checked_directory(directory)
        self._every_cycles = checks.integer(
            "every_cycles", every_cycles, minimum=1, remedy="1 saves at the end of every cycle"
        )
        self._agree_steps = checks.integer(
            "agree_steps", agree_steps, minimum=0, remedy="the default is 1"
        )
        checks.instance("model", model, torch.nn.Module, remedy="pass the module that is trained")
        checked_optimizer(optimizer)
        self._counted = _checked_scheduler(scheduler)
        for name, own in others.items():
            check_object(name, own)
        own_names = _checked_per_rank(per_rank, others)
        # The scheduler last, so that its rates are written over those of rank 0's optimiser.
        objects = {"model": model, "optimizer": optimizer, **others, "scheduler": scheduler}
        found = [ensemble for own in objects.values() for ensemble in ensembles_of(own)]
        self._ensembles = list(dict.fromkeys(found))
        self._contents = Contents(objects, own_names, optimizer)
        self._everyone = everyone(self._counted[0].replicas, optimizer)
        self._device = optimizers.parameters(optimizer)[0].device
        self._lineage: list[str] | None = None
        self._num_steps, self._num_cycles = 0, self._cycles()
        self._asked: tuple[torch.Tensor, Waitable] | None = None
        self._stop = StopSignal()
        if self._agree_steps > 0:
            self._stop.install()
            weakref.finalize(self, self._stop.uninstall)

    def restore(self) -> int:
        """Go on from the newest checkpoint that is whole on all ranks, if there is one.

        Files that are torn or altered are named in the log and skipped. At another number of ranks
        than the one that saved, what each rank had of its own is derived anew unless all had the
        same; the log says what.

        Returns:
            The number of steps done, which is how often `step` was called before the checkpoint; 0
            where there is none.
        """
        found = self._on_rank_0(self._tidied)
        lineage = [name for _, name, _ in reversed(found)]
        skipped = []
        for _, name, digest in found:
            saved, reason = self._read(name, digest)
            faults = self._everyone.gather_objects(reason)
            if not any(faults):
                self._lineage = lineage
                self._go_on_from(name, saved)
                return self._num_steps
            lineage.remove(name)
            skipped.append(f"{name}: {_listed_faults(faults)}")
            self._log("%s is skipped: %s", self._directory / name, _listed_faults(faults))
        if skipped:
            raise CheckpointError(
                f"directory must hold a checkpoint that is whole, got {'; '.join(skipped)} in "
                f"{self._directory}; put a copy back, or empty it to start from the beginning"
            )
        self._lineage = []
        return 0

    def step(self) -> None:
        """Follow one ``scheduler.step()``, on every rank: write a checkpoint if it is time to.

        Raises:
            SystemExit: of status 143, after a last checkpoint, if a rank has got SIGTERM.
        """
        if self._lineage is None:
            self._start_afresh()
        self._num_steps += 1
        num_cycles = self._cycles()
        is_due = num_cycles // self._every_cycles > self._num_cycles // self._every_cycles
        self._num_cycles = num_cycles
        stops = self._is_stopping()
        if is_due or stops:
            self._save_or_go_on()
        if stops:
            self._log(
                "SIGTERM: the run ends at step %d, after its last checkpoint", self._num_steps
            )
            self._stop.answer()
        if self._is_over():
            self.close()

    def save(self) -> Path:
        """Write a checkpoint now, wherever the cycle stands: the replicas converge first.

        All ranks must call it at the same step, after `step`.
        """
        if self._lineage is None:
            self._start_afresh()
        for ensemble in self._ensembles:
            ensemble.converge()
        ranks = self._everyone.gather_bytes(self._contents.of_rank())
        path = self._directory / str(self._on_rank_0(lambda: self._write(ranks)))
        self._lineage = [*(self._lineage or ()), path.name][-_KEPT:]
        return path

    def close(self) -> None:
        """Let SIGTERM end the process again: nobody calls `step` from now on."""
        self._stop.uninstall()

    # ------------------------------------------------------------------ writing and reading

    def _save_or_go_on(self) -> None:
        """A disk that is full for a while ends no run that has a checkpoint to fall back on."""
        try:
            self.save()
        except CheckpointError as error:
            if not self._lineage:
                raise
            self._log("no checkpoint at step %d: %s", self._num_steps, error)

    def _write(self, ranks: Sequence[bytes]) -> str:
        name = files.write(
            self._directory, self._num_steps, self._contents.of_run(self._num_steps, ranks)
        )
        files.keep(self._directory, [*(self._lineage or ())[1 - _KEPT :], name])
        logger.info("checkpoint at step %d: %s", self._num_steps, self._directory / name)
        return name

    def _tidied(self) -> list[files.Found]:
        left = files.clean(self._directory)
        if left:
            logger.info("left by a crash and removed from %s: %s", self._directory, left)
        return files.listed(self._directory)

    def _read(self, name: str, digest: str | None) -> tuple[Any, str | None]:
        path = self._directory / name
        reason = files.fault(path, digest)
        if reason is not None:
            return None, reason
        saved, reason = files.read(path)
        return saved, check_format(saved) if reason is None else reason

    def _go_on_from(self, name: str, saved: dict[str, Any]) -> None:
        rank, num_ranks = self._everyone.replica or 0, self._num_ranks()
        lost = self._contents.load(saved, rank, num_ranks)
        self._num_steps, self._num_cycles = int(saved["step"]), self._cycles()
        logger.info("going on at step %d from %s", self._num_steps, self._directory / name)
        if lost:
            self._log(
                "checkpoint %s was saved by %d ranks and is loaded by %d: begun anew: %s",
                self._directory / name,
                len(saved["ranks"]),
                num_ranks,
                ", ".join(dict.fromkeys(lost)),
            )

    def _start_afresh(self) -> None:
        if files.listed(self._directory):
            raise UsageError(
                f"restore() was not called, and {self._directory} holds checkpoints already, which "
                "this run would replace; call restore() before the first step, or pass an empty "
                "directory"
            )
        self._lineage = []

    def _on_rank_0(self, task: Callable[[], Any]) -> Any:
        """What rank 0 finds, on every rank; an error of its is everybody's."""
        value, message = None, None
        caught: Exception | None = None
        if self._everyone.replica in (0, None):
            try:
                value = task()
            except Exception as error:
                caught, message = error, str(error)
        is_disk = isinstance(caught, OSError)
        if isinstance(caught, OSError):
            message = (
                f"directory must be one that rank 0 can write to, got {self._directory}: "
                f"{caught.strerror or caught}; make room or mend its permissions, the checkpoints "
                "that are in it stay"
            )
        value, message, is_disk = self._everyone.gather_objects([value, message, is_disk])[0]
        if message is None:
            return value
        if is_disk:
            raise CheckpointError(message) from caught
        raise UsageError(f"rank 0 could not go on: {message}") if caught is None else caught

    # ------------------------------------------------------------------ small parts

    def _is_stopping(self) -> bool:
        """Whether any rank has got SIGTERM, the same answer on all of them."""
        if self._agree_steps == 0:
            return False
        if self._num_ranks() == 1:
            return self._stop.received
        if self._num_steps % self._agree_steps != 0:
            return False
        flag = torch.full((), float(self._stop.received), device=self._device)
        asked: tuple[torch.Tensor, Waitable] | None = (flag, self._everyone.all_reduce(flag))
        if self._device.type != "cpu":  # the answer to the last question is there without waiting
            self._asked, asked = asked, self._asked
        if asked is None:
            return False
        asked[1].wait()
        return bool(asked[0] > 0.0)

    def _num_ranks(self) -> int:
        return self._everyone.num_replicas // self._everyone.num_local

    def _cycles(self) -> int:
        return sum(ensemble.num_cycles for ensemble in self._counted)

    def _is_over(self) -> bool:
        (ensemble, *others) = self._counted
        return not others and ensemble.total_steps == ensemble.num_steps

    def _log(self, text: str, *values: Any) -> None:
        if self._everyone.replica in (0, None):
            logger.warning(text, *values)


def _checked_directory(directory: Any) -> Path:
    remedy = 'pass for example "run/checkpoints"'
    if not isinstance(directory, str | os.PathLike) or not str(directory):
        raise InvalidTypeError(
            f"directory must be the path of a directory, got {directory!r}; {remedy}"
        )
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise InvalidValueError(
            f"directory must be the path of a directory, got the file {str(path)!r}; {remedy}"
        )
    return path.absolute()


def _checked_scheduler(scheduler: Any) -> list[Ensemble]:
    found = ensembles_of(scheduler)
    if not found:
        raise InvalidTypeError(
            f"scheduler must be one of hdet's, got a {type(scheduler).__name__}; hdet.OneCycleLR "
            "without a spread is PyTorch's, and hdet.Ensemble(schedule=...) takes any other"
        )
    return found


def _checked_per_rank(per_rank: Any, others: dict[str, Any]) -> list[str]:
    names = [per_rank] if isinstance(per_rank, str) else list(per_rank)
    unknown = [name for name in names if name not in others]
    if unknown:
        raise InvalidValueError(
            f"per_rank must name objects that are passed by keyword, got {unknown} of "
            f"{sorted(others)}; pass for example data=loader, per_rank=['data']"
        )
    generators = [name for name, own in others.items() if isinstance(own, torch.Generator)]
    return [*names, *generators]


def _listed_faults(faults: Sequence[str | None]) -> str:
    """Each fault once, with the ranks that met it unless all did."""
    kinds = dict.fromkeys(fault for fault in faults if fault is not None)
    texts = []
    for kind in kinds:
        ranks = [rank for rank, fault in enumerate(faults) if fault == kind]
        where = "" if len(ranks) == len(faults) else f" (on ranks {ranks})"
        texts.append(f"{kind}{where}")
    return "; ".join(texts)
