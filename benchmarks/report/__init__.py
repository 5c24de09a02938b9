"""From raw records to a page and its figures; needs the extra ``report``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import figures, horizon, stacked
from benchmarks.report.page import page
from benchmarks.report.results import Record, Results


def write(
    records: Iterable[Record],
    costs: Mapping[str, Any],
    docs: Path,
    branches: Sequence[Record] = (),
    lanes: Sequence[Record] = (),
) -> None:
    """``results.md`` and ``figures/`` in that folder."""
    records = list(records)
    results = Results(records)
    unseen = Results.of_suite(records, "unseen")
    drawn = figures.draw_all(results, docs / "figures")
    horizon.draw(branches, docs / "figures")
    drawn += stacked.draw(lanes, docs / "figures")
    (docs / "results.md").write_text(page(results, unseen, costs, drawn, branches, lanes))


__all__ = ["Results", "write"]
