"""Six smaller tasks, beside the main ones, by which defaults are chosen."""

from benchmarks.tasks.development.images import Autoencoder, ConvGroupNorm, FewImages, Perceptron
from benchmarks.tasks.development.lstm import LSTM
from benchmarks.tasks.development.teacher import Teacher

TASKS = (Autoencoder, Perceptron, ConvGroupNorm, LSTM, Teacher, FewImages)

__all__ = ["TASKS"]
