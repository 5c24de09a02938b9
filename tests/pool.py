"""Real gloo processes for the tests: started once, given one function after another.

Importing torch takes seconds, so the workers live as long as the test session. Each call
initialises a fresh default process group of the size asked for and destroys it afterwards.
"""

from __future__ import annotations

import datetime
import os
import queue
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT_S = 60


class WorkerError(AssertionError):
    """A worker raised; the message is its traceback."""


def _serve(inbox: Any, outbox: Any) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    while (job := inbox.get()) is not None:
        function, args, rank, size, store_path = job
        try:
            if store_path is not None:
                store = dist.FileStore(store_path, size)
                timeout = datetime.timedelta(seconds=TIMEOUT_S / 2)
                dist.init_process_group(
                    "gloo", store=store, rank=rank, world_size=size, timeout=timeout
                )
            result = function(rank, *args)
            outbox.put((rank, True, result))
        except BaseException:  # everything is reported to the test
            outbox.put((rank, False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


class Pool:
    """``run(function, size, *args)`` returns ``function(rank, *args)`` of each rank, in order."""

    def __init__(self, size: int = 4) -> None:
        self._context = mp.get_context("spawn")
        self._size = size
        self._workers: list[Any] = []

    def _start(self) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._outbox = self._context.Queue()
        self._inboxes = [self._context.Queue() for _ in range(self._size)]
        self._workers = [
            self._context.Process(target=_serve, args=(inbox, self._outbox), daemon=True)
            for inbox in self._inboxes
        ]
        for worker in self._workers:
            worker.start()

    def run(
        self, function: Callable[..., Any], size: int, *args: Any, group: bool = True
    ) -> list[Any]:
        """Run on ``size`` ranks; with ``group=False`` no process group is initialised."""
        if not self._workers:
            self._start()
        with tempfile.TemporaryDirectory() as folder:
            store = os.path.join(folder, "store") if group else None
            for rank in range(size):
                self._inboxes[rank].put((function, args, rank, size, store))
            results: dict[int, Any] = {}
            errors: dict[int, str] = {}
            try:
                for _ in range(size):
                    rank, done, value = self._outbox.get(timeout=TIMEOUT_S)
                    (results if done else errors)[rank] = value
            except queue.Empty:
                self.stop(kill=True)
                missing = sorted(set(range(size)) - set(results) - set(errors))
                raise WorkerError(f"ranks {missing} did not answer within {TIMEOUT_S} s") from None
        if errors:
            raise WorkerError("\n".join(f"rank {r}:\n{errors[r]}" for r in sorted(errors)))
        return [results[rank] for rank in range(size)]

    def stop(self, *, kill: bool = False) -> None:
        """End the workers; the next run starts new ones."""
        for inbox, worker in zip(getattr(self, "_inboxes", []), self._workers, strict=True):
            if kill:
                worker.kill()
            else:
                inbox.put(None)
        for worker in self._workers:
            worker.join(timeout=20)
        self._workers = []
