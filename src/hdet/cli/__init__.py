"""The ``hdet`` command: one file a sub-command.

Exit status 0: done; 1: failed, with one line that says why; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hdet
from hdet.cli import demo
from hdet.errors import HDETError, HDETWarning

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
        with _plain_warnings(f"hdet {options.command}"):
            options.run(options)
    except HDETError as error:
        print(f"hdet {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"hdet {options.command}: stopped", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _plain_warnings(prefix: str) -> Iterator[None]:
    """Print our warnings as lines to read, without the source line that raised them."""
    default: Callable[..., str] = warnings.formatwarning

    def formatted(message: Any, category: type[Warning], *rest: Any, **named: Any) -> str:
        if issubclass(category, HDETWarning):
            return f"{prefix}: warning: {message}\n"
        return default(message, category, *rest, **named)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = default
