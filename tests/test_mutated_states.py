"""2 000 damaged checkpoints: a clear error, the live run as it was, and no code executed.

A change that leaves a state valid (another rate, another step) cannot be told from a good one
without a checksum; what is checked then is that the run goes on, or says in one line why not.
"""

from __future__ import annotations

import copy
import io
import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import hdet
from hdet.errors import HDETError
from tests.mutations import HOSTILE, Hostile, as_file, mutated, mutated_file
from tests.states.make import KINDS, Run

NUM_STRUCTURES, NUM_FILES = 1500, 500
STEP = 12


def plain(value: Any) -> Any:
    """With tensors as lists, so that two of them can be compared as text."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {key: plain(own) for key, own in value.items()}
    return [plain(own) for own in value] if isinstance(value, list | tuple) else value


def everything(run: Run) -> str:
    """All that a load could change, to the last bit."""
    written = [group["lr"] for group in run.optimizer.param_groups]
    return repr(plain([part.state_dict() for part in run.parts().values()] + [written]))


def live_run(kind: str) -> Run:
    run = Run(kind)
    run.train(range(STEP))
    return run


def saved(kind: str) -> dict[str, Any]:
    run = Run(kind)
    run.train(range(STEP + 5))
    run.scheduler.converge()
    state: dict[str, Any] = copy.deepcopy(run.scheduler.state_dict())
    return state


def check_line(error: HDETError) -> None:
    message = str(error)
    assert "\n" not in message
    assert "; " in message, message
    assert len(message) < 700, (len(message), message)


def try_to_load(run: Run, state: Any) -> bool:
    """Whether it was taken; an error is ours, one line, and says what to do."""
    before = everything(run)
    try:
        run.scheduler.load_state_dict(state)
    except HDETError as error:
        check_line(error)
        assert everything(run) == before
        return False
    return True


def go_on(run: Run) -> None:
    """What was taken must not break the run later, but in one line of ours."""
    try:
        run.train(range(STEP, STEP + 6))
        run.scheduler.converge()
        run.scheduler.state_dict()
    except HDETError as error:
        check_line(error)
    except ValueError as error:  # PyTorch's OneCycleLR past the end of its run
        if "Tried to step" not in str(error):
            raise


@pytest.mark.filterwarnings("ignore::hdet.HDETWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_states_with_something_wrong_inside(kind: str) -> None:
    chance = random.Random(kind)
    state, run, refused = saved(kind), live_run(kind), 0
    pristine, twin = copy.deepcopy(run), copy.deepcopy(run)
    for _ in range(NUM_STRUCTURES // len(KINDS)):
        if try_to_load(run, mutated(chance, state)):
            go_on(run)
            run = copy.deepcopy(pristine)
        else:
            refused += 1
    assert refused > NUM_STRUCTURES // len(KINDS) // 3
    while try_to_load(run, mutated(chance, state)):
        run = copy.deepcopy(pristine)
    assert run.train(range(STEP, 30)) == twin.train(range(STEP, 30))
    assert everything(run) == everything(twin)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_files_with_bytes_changed(kind: str) -> None:
    chance = random.Random(kind)
    data, run, refused = as_file(saved(kind)), live_run(kind), 0
    pristine = copy.deepcopy(run)
    before = everything(run)
    for _ in range(NUM_FILES // len(KINDS)):
        try:
            state = torch.load(io.BytesIO(mutated_file(chance, data)), weights_only=True)
        except Exception:  # torch's own, of many kinds, before anything of ours is asked
            refused += 1
            continue
        if try_to_load(run, state):
            go_on(run)
            run = copy.deepcopy(pristine)
    assert refused > NUM_FILES // len(KINDS) // 3
    assert everything(run) == before


@pytest.mark.parametrize("call", HOSTILE)
@pytest.mark.parametrize("place", ["whole", "ensemble", "signal", "base"])
def test_a_hostile_pickle_runs_nothing(call: str, place: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    hostile = Hostile(str(mark), call)
    state: Any = saved("auto_lr")
    if place == "whole":
        state = hostile
    elif place == "base":
        state["ensemble"]["hyperparameters"]["lr/0"]["base"] = hostile
    else:
        (state if place == "ensemble" else state["ensemble"])[place] = hostile
    run = live_run("auto_lr")
    before = everything(run)
    with pytest.raises(pickle.UnpicklingError, match=r"[Ww]eights.only"):
        run.scheduler.load_state_dict(torch.load(io.BytesIO(as_file(state)), weights_only=True))
    assert not mark.exists()
    assert everything(run) == before


def test_the_hostile_object_does_something_where_it_is_trusted(tmp_path: Path) -> None:
    """Negative control."""
    mark = tmp_path / "mark"
    data = as_file({"a": Hostile(str(mark), "system")})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.load(io.BytesIO(data), weights_only=False)
    assert mark.exists()


def test_there_are_two_thousand() -> None:
    assert NUM_STRUCTURES + NUM_FILES >= 2000
    assert isinstance(hdet.HDETError(), Exception)
