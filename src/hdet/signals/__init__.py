"""[1] What a cycle measured."""

from hdet.signals.base import AbstractSignal
from hdet.signals.intake import Intake
from hdet.signals.losses import Losses
from hdet.signals.training_loss import TrainingLoss

__all__ = ["AbstractSignal", "Intake", "Losses", "TrainingLoss"]
