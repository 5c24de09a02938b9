"""The shapes in which most scripts meet the library."""

from hdet.schedulers.auto_lr import AutoLR
from hdet.schedulers.one_cycle import OneCycleLR

__all__ = ["AutoLR", "OneCycleLR"]
