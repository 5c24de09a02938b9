"""Where the random generators of a process stand: torch's, its devices', Python's and NumPy's."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch


def capture(devices: Sequence[torch.device]) -> dict[str, Any]:
    """All global generators, in plain types; a few kilobytes."""
    found: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "devices": [_of_device(device).get_rng_state(*_index(device)) for device in devices],
    }
    numpy = sys.modules.get("numpy")  # whoever has not imported it cannot have drawn from it
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state(legacy=True)
        found["numpy"] = [kind, keys.tolist(), *rest]
    return found


def put_back(saved: dict[str, Any], devices: Sequence[torch.device]) -> None:
    """Set the generators that ``saved`` names."""
    if "torch" in saved:
        torch.set_rng_state(saved["torch"])
    if "python" in saved:
        version, keys, gauss = saved["python"]
        random.setstate((version, tuple(keys), gauss))
    for device, state in zip(devices, saved.get("devices", ()), strict=False):
        _of_device(device).set_rng_state(state, *_index(device))
    numpy = sys.modules.get("numpy")
    if "numpy" in saved and numpy is not None:
        numpy.random.set_state(tuple(saved["numpy"]))


def derive(names: Sequence[str], key: str, devices: Sequence[torch.device]) -> None:
    """Set the generators in ``names`` anew, from a text that tells runs and ranks apart."""
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "big")
    if "torch" in names:
        torch.default_generator.manual_seed(seed)
    if "python" in names:
        random.seed(seed)
    if "devices" in names:
        for device in devices:
            fresh = torch.Generator(device).manual_seed(seed)
            _of_device(device).set_rng_state(fresh.get_state(), *_index(device))
    numpy = sys.modules.get("numpy")
    if "numpy" in names and numpy is not None:
        numpy.random.seed(seed % 2**32)


def _of_device(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _index(device: torch.device) -> tuple[torch.device, ...]:
    """There is one MPS device, whose functions take none."""
    return () if device.type == "mps" else (device,)
