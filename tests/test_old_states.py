"""States that older versions wrote load, and their runs go on as they did there.

`tests/states/make.py` made the files, run on a check-out of each version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hdet import arguments
from tests.states.make import END, KINDS, STOP, Run, made

FOLDER = Path(__file__).parent / "states"
VERSIONS = [1, 2, 3]
CASES = [(1, "one_cycle"), (1, "ensemble"), *((v, kind) for v in VERSIONS[1:] for kind in KINDS)]


def saved(version: int) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(FOLDER / f"version_{version}.pt", weights_only=True)
    return found


def ensemble_of(state: dict[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = state["scheduler"].get("ensemble", state["scheduler"])
    return own


def test_there_is_a_file_of_every_version_and_of_the_present_one() -> None:
    assert list(range(1, arguments.STATE_VERSION + 1)) == VERSIONS
    assert {path.stem for path in FOLDER.glob("*.pt")} == {f"version_{v}" for v in VERSIONS}
    assert [kind for version, kind in CASES if version == 1] == list(saved(1))


@pytest.mark.parametrize(("version", "kind"), CASES)
def test_a_state_of_an_older_version_goes_on_as_it_did_there(version: int, kind: str) -> None:
    case = saved(version)[kind]
    assert ensemble_of(case["state"])["version"] == version
    run = Run(kind)
    run.load(case["state"])
    assert run.ensemble.num_steps == STOP
    assert run.train(range(STOP, END)) == case["went_on"]
    assert len(set(case["went_on"])) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_present_version_is_what_the_code_writes(kind: str) -> None:
    """Negative control: a change of the structure needs a new version and a new file."""
    own, kept = made(kind), saved(arguments.STATE_VERSION)[kind]
    assert shape_of(own["state"]) == shape_of(kept["state"])
    assert own["went_on"] == kept["went_on"]


def shape_of(value: Any) -> Any:
    """Keys and types, without the numbers."""
    if isinstance(value, dict):
        return {key: shape_of(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [shape_of(own) for own in value]
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), value.dtype)
    return type(value).__name__


def test_version_one_had_no_losses_of_the_cycle_so_far() -> None:
    for version in (1, 2):
        assert "cycle_so_far" not in ensemble_of(saved(version)["one_cycle"]["state"])
