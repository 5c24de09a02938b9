"""Checkpoints that outlive a killed process: what is in them, their files, and who writes when."""

from hdet.checkpointing.checkpointer import Checkpointer

__all__ = ["Checkpointer"]
