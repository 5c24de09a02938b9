"""The ``hdet`` command: one file a sub-command.

Exit status 0: done; 1: failed, with one line that says why; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import hdet
from hdet.cli import demo
from hdet.errors import HDETError

COMMANDS = (demo,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command."""
    parser = argparse.ArgumentParser(prog="hdet", description="Self-tuning data-parallel training.")
    parser.add_argument("--version", action="version", version=f"hdet {hdet.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except HDETError as error:
        print(f"hdet {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"hdet {options.command}: stopped", file=sys.stderr)
        return 1
    return 0
