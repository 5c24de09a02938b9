"""A checkpoint's file: there as a whole or not at all, and never believed without its checksum.

::

    step-00000120.pt          what torch.save wrote; torch.load(..., weights_only=True) reads it
    step-00000120.pt.sha256   its checksum, as `sha256sum --check` takes it

Both are written under a temporary name, flushed to the disk and renamed, the checksum first: a file
that bears its name is whole. Nothing here knows of processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

_NAME = re.compile(r"step-(\d{8,})\.pt")
_TEMPORARY = re.compile(r"step-\d{8,}\.pt(\.sha256)?\.tmp")
_CHECKSUM = re.compile(r"([0-9a-f]{64})  (\S+)\s*")
_BLOCK_BYTES = 2**20


class Found(NamedTuple):
    """A checkpoint that lies in a directory, unread."""

    step: int
    name: str
    digest: str | None
    """What its checksum should be; None if that is not known."""


def listed(directory: Path) -> list[Found]:
    """The checkpoints in a directory, the newest first; none if there is no directory."""
    if not directory.exists():
        return []
    matches = (_NAME.fullmatch(entry.name) for entry in directory.iterdir())
    found = [
        Found(int(match[1]), match[0], _read_digest(directory / match[0]))
        for match in matches
        if match is not None
    ]
    return sorted(found, reverse=True, key=lambda one: one.step)


def clean(directory: Path) -> list[str]:
    """Remove what a crash has left of checkpoints that were never finished; return the names."""
    if not directory.exists():
        return []
    names = {entry.name for entry in directory.iterdir()}
    left = {name for name in names if _TEMPORARY.fullmatch(name)}
    for name in names - left:
        data = name.removesuffix(".sha256")
        if data != name and _NAME.fullmatch(data) and data not in names:
            left.add(name)
    for name in left:
        (directory / name).unlink(missing_ok=True)
    return sorted(left)


def write(directory: Path, step: int, contents: Any) -> str:
    """Write a checkpoint so that it is there as a whole or not at all; return its name."""
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / f"step-{step:08d}.pt"
    checksum = _checksum_of(data)
    parts = [data.with_name(f"{own.name}.tmp") for own in (data, checksum)]
    for part in parts:
        part.unlink(missing_ok=True)
    try:
        digest = _write_data(parts[0], contents)
        # What cannot be read again is no checkpoint; mapped, the tensors are not read for this.
        torch.load(parts[0], map_location="cpu", weights_only=True, mmap=True)
        with _synced(parts[1]) as file:
            file.write(f"{digest}  {data.name}\n".encode())
        data.unlink(missing_ok=True)  # an older one must not stand beside the new checksum
        parts[1].replace(checksum)
        parts[0].replace(data)
    except BaseException:
        for part in parts:
            part.unlink(missing_ok=True)
        raise
    _sync_directory(directory)
    return data.name


def keep(directory: Path, names: Collection[str]) -> None:
    """Remove all checkpoints but those named."""
    for found in listed(directory):
        if found.name not in names:
            path = directory / found.name
            path.unlink(missing_ok=True)
            _checksum_of(path).unlink(missing_ok=True)


def fault(path: Path, digest: str | None) -> str | None:
    """What is wrong with a file, in a few words; None if it is the one that was written."""
    if digest is None:
        return "it has no checksum"
    hashed, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                hashed.update(block)
                size += len(block)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if hashed.hexdigest() != digest:
        return f"its {size} bytes do not match its checksum: it is torn or was altered"
    return None


def read(path: Path) -> tuple[Any, str | None]:
    """What was written, or what is wrong with it. Executes nothing that the file says."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True), None
    except Exception as error:  # a damaged pickle ends in whatever its bytes ask for
        reason = (str(error).splitlines() or [""])[0][:200]
        return None, f"torch.load refuses it: {type(error).__name__}: {reason}"


class _Hashing:
    """A file that knows the checksum of what was written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hashed = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Write and hash; torch writes from front to back."""
        self.hashed.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        """As of any file."""
        self._file.flush()


def _write_data(path: Path, contents: Any) -> str:
    with _synced(path) as file:
        hashing = _Hashing(file)
        torch.save(contents, hashing)  # type: ignore[arg-type]  # write and flush are all it needs
        return hashing.hashed.hexdigest()


@contextlib.contextmanager
def _synced(path: Path) -> Any:
    """A new file, on the disk when this is over; a link of that name is not followed."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    """Names outlive a power cut only if the directory is flushed too; not all systems let one."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _checksum_of(data: Path) -> Path:
    return data.with_name(f"{data.name}.sha256")


def _read_digest(data: Path) -> str | None:
    try:
        text = _checksum_of(data).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    match = _CHECKSUM.fullmatch(text)
    return match[1] if match is not None and match[2] == data.name else None
