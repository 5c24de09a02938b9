"""[1] What a cycle measured."""

from hdet.signals.base import AbstractSignal, Trend
from hdet.signals.gradient_product import GradientProduct
from hdet.signals.intake import Intake
from hdet.signals.losses import Losses
from hdet.signals.paired_probe import PairedProbe
from hdet.signals.probe import Probe
from hdet.signals.training_loss import TrainingLoss

__all__ = [
    "AbstractSignal",
    "GradientProduct",
    "Intake",
    "Losses",
    "PairedProbe",
    "Probe",
    "TrainingLoss",
    "Trend",
]
