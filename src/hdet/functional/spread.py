"""Who gets which value: the multipliers (Eq. 1) and their reassignment (Eq. 9)."""

from __future__ import annotations

import hashlib

import torch

from hdet import checks

_COUNT = "pass how many replicas take part, at least 1"


def spread_multipliers(num_replicas: int, spread_ratio: float) -> torch.Tensor:
    r"""Eq. 1: $\rho_r = 1 + \alpha (r - (N-1)/2) / \delta$, $\delta = \max((N-1)/2, 1/2)$.

    The multipliers sum to N, are symmetric about 1 and lie in [1 - alpha, 1 + alpha]. One replica,
    or a spread of 0, gives exactly 1.

    Args:
        num_replicas: N, at least 1.
        spread_ratio: alpha, at least 0. From 1 on the lowest multiplier is not positive.

    Returns:
        float64 tensor ``[R]``.

    >>> spread_multipliers(3, 0.5).tolist()
    [0.5, 1.0, 1.5]
    >>> spread_multipliers(1, 0.5).tolist()
    [1.0]
    """
    num_replicas = checks.integer("num_replicas", num_replicas, minimum=1, remedy=_COUNT)
    spread_ratio = checks.real("spread_ratio", spread_ratio, low=0.0, remedy="the paper uses 1/9")
    centre = (num_replicas - 1) / 2
    offsets_R = torch.arange(num_replicas, dtype=torch.float64) - centre
    return 1.0 + spread_ratio * (offsets_R / max(centre, 0.5))


def permutation(seed: int, cycle: int, index: int, num_replicas: int) -> torch.Tensor:
    r"""Eq. 9: $\pi$, a fresh uniform permutation for each (seed, cycle, hyperparameter).

    Replica r takes multiplier ``permutation(...)[r]``. The permutation is a function of its
    arguments alone. Every replica computes the same one without a message, a resumed run repeats
    it, and no generator of the user's is read or moved. (The released script reseeds the global
    generator and draws from it, so that ranks which drew a different amount of other random
    numbers collide.)

    Sorting keyed hashes, where a ``torch.Generator`` would be shorter, keeps the result the same
    for every version of torch and every device.

    Args:
        seed: the run's seed, any integer.
        cycle: number of converges so far, at least 0.
        index: which hyperparameter, at least 0.
        num_replicas: N, at least 1.

    Returns:
        int64 tensor ``[R]``, a permutation of 0 .. N-1.

    >>> sorted(permutation(0, 3, 1, 4).tolist())
    [0, 1, 2, 3]
    """
    seed = checks.seed(seed)
    cycle = checks.integer("cycle", cycle, minimum=0, remedy="count converges from 0")
    index = checks.integer("index", index, minimum=0, remedy="count hyperparameters from 0")
    num_replicas = checks.integer("num_replicas", num_replicas, minimum=1, remedy=_COUNT)

    def sort_key(replica: int) -> bytes:
        text = f"hdet permutation {seed} {cycle} {index} {replica}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    return torch.tensor(sorted(range(num_replicas), key=sort_key), dtype=torch.int64)
