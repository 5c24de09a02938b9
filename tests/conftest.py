from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from tests.pool import Pool

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("ci")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    workers = Pool()
    yield workers
    workers.stop()
