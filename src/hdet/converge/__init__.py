"""[5] How replicas become one: which tensors average, and the bucketed in-place executor."""

from hdet.converge.executor import converge_, share_
from hdet.converge.selection import Selection, select

__all__ = ["Selection", "converge_", "select", "share_"]
