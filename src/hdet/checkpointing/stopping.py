"""SIGTERM, remembered until the step is over."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from hdet.errors import warn

EXIT_STATUS = 128 + signal.SIGTERM
"""What a shell reports of a process that SIGTERM has ended; torchrun restarts on it."""
_GRACE_S = 5.0
"""A launcher passes on the signal that its cluster sends to all processes anyway: twice is once."""


class StopSignal:
    """Takes SIGTERM for a note that is read later; knows nothing of the training it stops."""

    def __init__(self) -> None:
        self._received_at: float | None = None
        self._previous: Any = None
        self._pid: int | None = None

    @property
    def received(self) -> bool:
        """Whether this process was asked to end."""
        return self._received_at is not None

    def install(self) -> None:
        """Listen from now on, which only a main thread may."""
        if threading.current_thread() is not threading.main_thread():
            warn(
                "SIGTERM will end the run without a last checkpoint, because the Checkpointer was "
                "not built in the main thread; build it there, or pass agree_steps=0"
            )
            return
        self._pid = os.getpid()
        self._previous = signal.signal(signal.SIGTERM, self._note)

    def uninstall(self) -> None:
        """Let SIGTERM do what it did; one that nobody has answered does it now."""
        if self._pid is None:
            return
        forked = self._pid != os.getpid()
        self._pid = None
        if not forked and signal.getsignal(signal.SIGTERM) == self._note:
            previous = signal.SIG_DFL if self._previous is None else self._previous
            signal.signal(signal.SIGTERM, previous)
            if self.received:
                signal.raise_signal(signal.SIGTERM)

    def answer(self) -> Any:
        """The last checkpoint is written: stop listening; call who listened before, then leave."""
        was_received, self._received_at = self.received, None
        self.uninstall()
        if was_received and callable(self._previous):
            self._previous(signal.SIGTERM, None)
        raise SystemExit(EXIT_STATUS)

    def _note(self, *_: Any) -> None:
        now = time.monotonic()
        is_child = os.getpid() != self._pid  # forked: nobody there looks at the note
        if is_child or (self._received_at is not None and now > self._received_at + _GRACE_S):
            previous = signal.SIG_DFL if self._previous is None else self._previous
            signal.signal(signal.SIGTERM, previous)
            signal.raise_signal(signal.SIGTERM)
        elif self._received_at is None:
            self._received_at = now
