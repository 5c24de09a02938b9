"""The one entry point: ``python -m benchmarks [core|render]``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import core, timing

RESULTS = Path(__file__).parent / "results" / "core.json"
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def main() -> None:
    """Measure, or render what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("command", nargs="?", default="core", choices=("core", "render"))
    if parser.parse_args().command == "core":
        results = {"provenance": timing.provenance(), **core.measure()}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    results = json.loads(RESULTS.read_text())
    page = core.render(results)
    PAGE.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
