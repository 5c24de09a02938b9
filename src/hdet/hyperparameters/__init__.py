"""[3] What can vary from replica to replica."""

from hdet.hyperparameters.base import AbstractHyperparameter
from hdet.hyperparameters.learning_rate import LearningRate

__all__ = ["AbstractHyperparameter", "LearningRate"]
