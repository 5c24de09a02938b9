"""Files of `hdet.Checkpointer`: torn, altered, hostile, left by a crash, or not to be written."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.checkpointing import files
from tests.interruptible import CYCLE_STEPS, Run, S

NEWEST, BEFORE = 2 * CYCLE_STEPS, CYCLE_STEPS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    torch.manual_seed(0)
    Run(directory).train(NEWEST + 2)
    return directory


@pytest.fixture
def saved(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "saved"))


def newest(directory: Path) -> Path:
    return directory / f"step-{NEWEST:08d}.pt"


def resign(data: Path) -> None:
    """Give an altered file the checksum that it should have."""
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    data.with_name(f"{data.name}.sha256").write_text(f"{digest}  {data.name}\n")


def flip(data: Path, position: float) -> None:
    text = bytearray(data.read_bytes())
    text[int(position * (len(text) - 1))] ^= 1
    data.write_bytes(text)


def cut(data: Path, part: float) -> None:
    os.truncate(data, int(data.stat().st_size * part))


class Hostile:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/hdet-was-here",)


def hostile(data: Path) -> None:
    torch.save({"format": "hdet.Checkpointer", "version": 1, "x": Hostile()}, data)
    resign(data)


def checksum(text: str) -> Callable[[Path], Any]:
    return lambda data: data.with_name(f"{data.name}.sha256").write_text(text)


def replaced(value: Any) -> Callable[[Path], None]:
    def write(data: Path) -> None:
        torch.save(value, data)
        resign(data)

    return write


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda data: data.write_bytes(b""), "its 0 bytes do not match"),
    "torn": (lambda data: cut(data, 0.5), "do not match its checksum: it is torn or was altered"),
    "without its last byte": (lambda data: cut(data, 0.9999), "do not match"),
    "longer": (lambda data: data.write_bytes(data.read_bytes() + b"x"), "do not match"),
    "a bit flipped at the start": (lambda data: flip(data, 0.0), "do not match"),
    "a bit flipped in the middle": (lambda data: flip(data, 0.5), "do not match"),
    "a bit flipped at the end": (lambda data: flip(data, 1.0), "do not match"),
    "without a checksum": (
        lambda data: data.with_name(f"{data.name}.sha256").unlink(),
        "it has no checksum",
    ),
    "an empty checksum": (checksum(""), "it has no checksum"),
    "half a checksum": (checksum("12ab"), "it has no checksum"),
    "a checksum that is no text": (checksum("\N{SNOWMAN}" * 64), "it has no checksum"),
    "the checksum of another": (checksum(f"{'0' * 64}  step-00000099.pt\n"), "has no checksum"),
    "another checksum": (checksum(f"{'0' * 64}  step-{NEWEST:08d}.pt\n"), "do not match"),
    "no file": (lambda data: (data.unlink(), data.mkdir()), "it cannot be read: Is a directory"),
    "torn and signed": (lambda data: (cut(data, 0.5), resign(data)), "torch.load refuses it"),
    "text and signed": (
        lambda data: (data.write_text("hello"), resign(data)),
        "torch.load refuses it: KeyError",
    ),
    "hostile and signed": (hostile, "torch.load refuses it: UnpicklingError: Weights only"),
    "a list": (replaced([1]), "it is no checkpoint of hdet.Checkpointer's"),
    "another format": (replaced({"format": "x", "version": 1}), "it is no checkpoint"),
    "parts missing": (
        replaced({"format": "hdet.Checkpointer", "version": 1, "step": 1, "objects": {}}),
        "parts of it are missing",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_the_one_before_it_used(
    saved: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    break_it, reason = DAMAGES[damage]
    break_it(newest(saved))
    run = Run(saved)
    assert run.start == BEFORE
    assert f"{newest(saved)} is skipped: " in caplog.text
    assert reason in caplog.text
    assert not Path("/tmp/hdet-was-here").exists()
    if damage != "no file":
        assert bool(torch.isfinite(run.train(NEWEST + 2)).all())
        assert files.fault(newest(saved), files.listed(saved)[0].digest) is None, "written anew"


def test_two_hundred_bytes_flipped_one_by_one(saved: Path) -> None:
    data = newest(saved)
    digest = files.listed(saved)[0].digest
    text = data.read_bytes()
    for position in range(0, len(text), max(len(text) // 200, 1)):
        data.write_bytes(text[:position] + bytes([text[position] ^ 4]) + text[position + 1 :])
        assert files.fault(data, digest) is not None
    data.write_bytes(text)
    assert files.fault(data, digest) is None


def test_where_nothing_is_whole_the_run_does_not_start_over_unasked(saved: Path) -> None:
    for data in saved.glob("*.pt"):
        cut(data, 0.7)
    expected = r"directory must hold a checkpoint that is whole, got step-00000014.pt: .*; put a"
    with pytest.raises(hdet.errors.CheckpointError, match=expected) as caught:
        Run(saved)
    assert "step-00000007.pt" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, OSError)


def test_a_later_versions_file_is_not_skipped(saved: Path) -> None:
    data = newest(saved)
    state = torch.load(data, weights_only=True)
    replaced({**state, "version": 2})(data)
    with pytest.raises(hdet.HDETError, match="version 1 at most, got version 2; resume with the"):
        Run(saved)


def test_the_checksum_is_the_systems_own(saved: Path) -> None:
    names = sorted(path.name for path in saved.glob("*.sha256"))
    command = ["sha256sum", "--check", "--strict", *names]
    subprocess.run(command, cwd=saved, check=True, capture_output=True)


def test_what_a_crash_left_is_removed_and_what_is_not_ours_stays(saved: Path) -> None:
    left = [
        "step-00000021.pt.tmp",
        "step-00000021.pt.sha256.tmp",
        "step-00000021.pt.sha256",
    ]
    others = ["notes.tmp", "step-00000021.pt.tmp.txt", "best.pt"]
    for name in left + others:
        (saved / name).write_text("x")
    assert Run(saved).start == NEWEST
    names = {path.name for path in saved.iterdir()}
    assert not names & set(left)
    assert set(others) <= names


def test_a_link_of_the_temporary_name_is_not_followed(saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "step-00000005.pt.tmp").symlink_to(target)
    files.write(tmp_path / "new", 5, {"x": 1})
    assert target.read_text() == "precious"
    assert not (tmp_path / "new" / "step-00000005.pt").is_symlink()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_ends_no_run_that_has_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    expected = Run(tmp_path / "other").train()
    run = Run(tmp_path / "full")
    for _ in range(CYCLE_STEPS):
        run.step()

    def full(self: Any, data: Any) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(files._Hashing, "write", full)
        for _ in range(CYCLE_STEPS + 2):
            run.step()
        assert (
            f"no checkpoint at step 14: directory must be one .*{os.strerror(code)}"
            in (caplog.text)
            or os.strerror(code) in caplog.text
        )
        with pytest.raises(hdet.errors.CheckpointError, match=os.strerror(code)):
            run.checkpointer.save()
        assert sorted(path.name for path in (tmp_path / "full").iterdir()) == [
            "step-00000007.pt",
            "step-00000007.pt.sha256",
        ]
    assert torch.equal(Run(tmp_path / "full").train(), expected)


def test_a_directory_that_cannot_be_written_to_ends_the_run_at_its_first_checkpoint(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("x")
    run = Run(tmp_path / "file" / "below")
    with pytest.raises(hdet.errors.CheckpointError, match=r"rank 0 can write to, got .*below"):
        run.train(CYCLE_STEPS)


def test_reading_and_writing_keep_to_one_files_memory(tmp_path: Path) -> None:
    """A checkpoint is hashed as it is written and in blocks as it is read."""
    model = nn.Linear(600, 600)
    name = files.write(tmp_path, 3, {"model": model.state_dict()})
    found = files.listed(tmp_path)
    assert [(one.step, one.name) for one in found] == [(3, name)]
    saved, reason = files.read(tmp_path / name)
    assert reason is None
    assert torch.equal(saved["model"]["weight"], model.weight)


def test_steps_past_eight_digits_stay_in_order(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000, 5):
        files.write(tmp_path, step, {})
    assert [one.step for one in files.listed(tmp_path)] == [100_000_000, 99_999_999, 5]
    assert S < 99_999_999


def test_a_kept_checkpoint_of_version_1_goes_on(tmp_path: Path) -> None:
    """Written by the release that introduced them; later ones load it."""
    kept = Path(__file__).parent / "kept" / "checkpoint_1"
    directory = Path(shutil.copytree(kept, tmp_path / "kept"))
    run = Run(directory)
    assert run.start == 17
    assert run.ensemble is not None
    assert run.ensemble.base_values["lr/0"] == pytest.approx(0.0025171326)
    assert bool(torch.isfinite(run.train()).all())
