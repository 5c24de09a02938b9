"""The real tasks: batches by (seed, step), and what is said where their data is missing."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.contestants import build
from benchmarks.runs import DIVERGED, train
from benchmarks.tasks import SUITES, TASKS, Task, diamonds, expand, flights, images
from benchmarks.tasks.unseen import fine_tuning

from hdet.cli import byte_model


def _images(prefix: str) -> tuple[torch.Tensor, ...]:
    numbers = torch.arange(60_000 if prefix == "train" else 2000)
    return (numbers / 60_000).view(-1, 1, 1, 1).expand(-1, -1, 28, 28), numbers % 10


def _flights() -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    columns = (torch.arange(20_000)[:, None], torch.arange(20_000.0), torch.zeros(20_000, 3))
    return columns, columns


def _diamonds() -> tuple[torch.Tensor, ...]:
    numbers = torch.arange(53_940.0) / 53_940
    return numbers[:, None].expand(-1, 26), numbers


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbered rows in place of the data, so that a batch shows which rows it took."""
    monkeypatch.setattr(images, "split", _images)
    monkeypatch.setattr(flights, "_split", _flights)
    monkeypatch.setattr(diamonds, "_data", _diamonds)
    monkeypatch.setattr(fine_tuning, "_pretrained", lambda: fine_tuning._body().state_dict())


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("kind", TASKS.values(), ids=lambda kind: kind.name)
def test_batches_are_a_function_of_seed_and_step(kind: type[Task]) -> None:
    task, other = kind(), kind()
    batch = task.batch(5, 1)
    torch.rand(3)  # the global generator has no say
    other.batch(9, 0)
    for own, again in zip(batch, other.batch(5, 1), strict=True):
        assert torch.equal(own, again)
    assert not torch.equal(batch[0], task.batch(5, 2)[0])
    assert not torch.equal(batch[0], task.batch(6, 1)[0])
    beyond = task.batch(task.total_steps + 3, 1)  # where a probe looks
    assert beyond[0].shape == batch[0].shape


@pytest.mark.usefixtures("stand_ins")
def test_an_epoch_shows_every_row_once() -> None:
    steps = 60_000 // images.BATCH_SIZE
    rows = torch.cat([images.Fashion().batch(step, 0)[0][:, 0, 0, 0] for step in range(0, steps)])
    assert len(rows.unique()) == len(rows)


def _no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def _no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "FOLDER", Path("nowhere"))


@pytest.mark.parametrize(
    ("load", "hide", "remedy"),
    [
        (diamonds._data.__wrapped__, _no_package, r"diamonds .*pip install 'hdet\[bench\]'"),
        (flights._rows, _no_package, r"flights .*pip install 'hdet\[bench\]'"),
        (lambda: images.split.__wrapped__("train"), _no_folder, "apt-get install dataset-fashion"),
    ],
    ids=["diamonds", "flights", "images"],
)
def test_missing_data_says_what_to_install(
    load: Callable[[], object],
    hide: Callable[[pytest.MonkeyPatch], None],
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hide(monkeypatch)
    with pytest.raises((ModuleNotFoundError, FileNotFoundError), match=remedy):
        load()


def test_the_language_model_needs_nothing_but_python() -> None:
    train, held_out = byte_model.corpus(200_000)
    assert len(train) > 0
    assert len(held_out) > 0


pretrain = fine_tuning._pretrained.__wrapped__
SMALLER = [TASKS[name] for suite in SUITES if suite != "main" for name in SUITES[suite]]


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("kind", SMALLER, ids=lambda kind: kind.name)
def test_a_few_steps_of_a_smaller_task_keep_it_finite(
    kind: type[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "total_steps", 3)
    losses = []
    for _ in range(2):
        record = train(kind(), 0, lambda task, model: build("hold_then_anneal@0.001", task, model))
        assert all(math.isfinite(loss) for _, loss, _ in record["curve"])
        losses.append(record["validation"])
    assert losses[0] == losses[1] < DIVERGED
    model = kind().build()
    assert model.training
    assert kind().validate(model) == kind().validate(model)
    assert model.training


@pytest.mark.usefixtures("stand_ins")
def test_pretraining_is_the_same_whatever_the_seed_and_leaves_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    first = pretrain(num_steps=2)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))
    again = pretrain(num_steps=2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    monkeypatch.setattr(fine_tuning, "_pretrained", lambda: first)
    one, other = fine_tuning.FineTuning().build(), fine_tuning.FineTuning().build()
    assert torch.equal(one[0][0].weight, other[0][0].weight)
    assert not torch.equal(one[1].weight, other[1].weight)


def test_names_of_tasks_are_their_own_and_every_one_is_in_a_suite() -> None:
    names = [name for suite in SUITES.values() for name in suite]
    assert names == list(dict.fromkeys(names)) == list(TASKS)
    assert len(SUITES["main"]) == 5
    assert expand(["teacher", "main"]) == ["teacher", *SUITES["main"]]


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("kind", TASKS.values(), ids=lambda kind: kind.name)
def test_groups_hold_every_parameter_once(kind: type[Task]) -> None:
    model = kind().build()
    held = [param for group in kind().groups(model) for param in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}
    assert len(held) == len(list(model.parameters()))
    assert all("lr" not in group for group in kind().groups(model))
