"""[1] What a cycle measured."""

from hdet.signals.base import AbstractSignal
from hdet.signals.losses import Losses, read_losses
from hdet.signals.training_loss import TrainingLoss

__all__ = ["AbstractSignal", "Losses", "TrainingLoss", "read_losses"]
