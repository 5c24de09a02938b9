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
from hdet.controllers import AbstractController, FixedController, PaperController
from hdet.cycle import Ensemble
from hdet.errors import HDETError, HDETWarning
from hdet.hyperparameters import AbstractHyperparameter, LearningRate
from hdet.replicas import AbstractReplicas, DistributedReplicas, VirtualReplicas
from hdet.schedulers import OneCycleLR
from hdet.signals import AbstractSignal, TrainingLoss
from hdet.warm_start import warm_start_

__version__ = "0.1.0.dev0"

__all__ = [
    "AbstractController",
    "AbstractHyperparameter",
    "AbstractReplicas",
    "AbstractSignal",
    "DistributedReplicas",
    "Ensemble",
    "FixedController",
    "HDETError",
    "HDETWarning",
    "LearningRate",
    "OneCycleLR",
    "PaperController",
    "TrainingLoss",
    "VirtualReplicas",
    "errors",
    "functional",
    "warm_start_",
]
