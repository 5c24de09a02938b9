"""Who has not come to a message that failed: said through the launcher's key-value store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from hdet.errors import ReplicaLostError

PATIENCE_S = 5.0
"""How long those who have come wait for others to say so too."""


def lost(error: Exception, who: Sequence[int], own: int, message: int, store: Any) -> Exception:
    """The error that names the replicas that did not come.

    Args:
        error: what the message ended in.
        who: the global rank of each replica.
        own: this one's index among them.
        message: the number of the message, the same on all that take part in it.
        store: what `torch.distributed` keeps for its ranks, or None if that cannot be reached.
    """
    came = sorted({own, *_came(store, who, own, message)})
    absent = [replica for replica in range(len(who)) if replica not in came]
    reason = str(error).strip().split("\n")[0][:160]
    told = f"replicas {came} came, {absent} did not" if absent else f"all of {came} came"
    return ReplicaLostError(
        f"replicas must exchange message {message} together, got an error on replica {own} "
        f"({reason}), where {told}; look at the output of those that did not: a process has died, "
        "or ranks call step() or converge() a different number of times"
    )


def _came(store: Any, who: Sequence[int], own: int, message: int) -> list[int]:
    """Who else has said that this message failed for it."""
    name = f"hdet/{min(who)}-{len(who)}/{message}"
    try:
        store.set(f"{name}/{who[own]}", "1")
        end = time.monotonic() + PATIENCE_S
        while True:
            found = [i for i, rank in enumerate(who) if store.check([f"{name}/{rank}"])]
            if len(found) == len(who) or time.monotonic() > end:
                return found
            time.sleep(0.05)
    except Exception:  # the rank that keeps the store may be the one that is gone
        return []
