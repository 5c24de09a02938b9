"""The corpus: all sources of Python's standard library, from this machine or from a file."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path
from typing import NamedTuple

import torch

HELD_OUT_PART = 0.1
_NOT_OURS = {"site-packages", "dist-packages", "__pycache__"}


class Corpus(NamedTuple):
    """Training and held-out bytes (uint8), and what tells this corpus from another."""

    training: torch.Tensor
    held_out: torch.Tensor
    name: str

    @classmethod
    def of(cls, data: bytes) -> Corpus:
        """Its last tenth is held out."""
        whole = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        cut = len(data) - int(len(data) * HELD_OUT_PART)
        name = f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:12]}"
        return cls(whole[:cut], whole[cut:], name)

    @classmethod
    def load(cls, path: Path | None) -> Corpus:
        """From a file of bytes; None is this machine's own library."""
        return cls.of(library() if path is None else path.read_bytes())


def library() -> bytes:
    """The library's files, with its tests where they are installed, in an order by hash.

    So that the end, which is held out, is a sample of all packages and not the last by name.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*.py")
        if path.is_file() and not _NOT_OURS & set(path.relative_to(folder).parts)
    }
    order = sorted(files, key=lambda name: hashlib.sha256(name.encode()).digest())
    return b"".join(files[name].read_bytes() for name in order)
