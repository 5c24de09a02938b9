"""Many configurations of one model trained at once on one device, each by its own optimiser.

The configurations ("lanes") lie along the leading dimension of stacked parameters. One forward and
one backward pass serve all of them; every lane then has a `Contestant` of its own, which steps over
views of the stack and knows nothing of the others. So what is measured is the library itself, and
a grid takes hardly longer than its batched matrix products.
"""

from benchmarks.stacked.command import add_parser, main
from benchmarks.stacked.study import FILE

__all__ = ["FILE", "add_parser", "main"]
