"""hdet: replicas that search for the learning rate inside the run you were going to pay for anyway.

::

              +--------------------------------- Eq. 9 ---------------------------------+
              v                                                                         |
    base values * multipliers --> N replicas --> T steps --> measure --> converge --> control
         (hyperparameters)         (replicas)                (signals)  (converge)  (controllers)

`hdet.OneCycleLR` is the one-line change to a script, `hdet.Ensemble` the general form, and
`hdet.functional` the equations.
"""

from hdet import errors, functional
from hdet.checkpointing import Checkpointer
from hdet.controllers import (
    AbstractController,
    Bounded,
    CoolDown,
    Evidence,
    FixedController,
    Gated,
    LongHorizonController,
    PaperController,
)
from hdet.cycle import Ensemble
from hdet.errors import HDETError, HDETWarning
from hdet.guard import Guard
from hdet.hyperparameters import AbstractHyperparameter, LearningRate
from hdet.replicas import AbstractReplicas, DistributedReplicas, VirtualReplicas
from hdet.schedulers import AutoLR, OneCycleLR
from hdet.signals import AbstractSignal, GradientProduct, PairedProbe, Probe, TrainingLoss, Trend
from hdet.warm_start import warm_start_

__version__ = "0.1.0.dev0"

__all__ = [
    "AbstractController",
    "AbstractHyperparameter",
    "AbstractReplicas",
    "AbstractSignal",
    "AutoLR",
    "Bounded",
    "Checkpointer",
    "CoolDown",
    "DistributedReplicas",
    "Ensemble",
    "Evidence",
    "FixedController",
    "Gated",
    "GradientProduct",
    "Guard",
    "HDETError",
    "HDETWarning",
    "LearningRate",
    "LongHorizonController",
    "OneCycleLR",
    "PairedProbe",
    "PaperController",
    "Probe",
    "TrainingLoss",
    "Trend",
    "VirtualReplicas",
    "errors",
    "functional",
    "warm_start_",
]
