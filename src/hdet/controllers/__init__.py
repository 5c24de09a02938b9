"""[2] How a base value moves."""

from hdet.controllers.base import AbstractController, Evidence
from hdet.controllers.fixed import FixedController
from hdet.controllers.long_horizon import LongHorizonController
from hdet.controllers.paper import PaperController
from hdet.controllers.wrappers import Bounded, CoolDown, Gated

__all__ = [
    "AbstractController",
    "Bounded",
    "CoolDown",
    "Evidence",
    "FixedController",
    "Gated",
    "LongHorizonController",
    "PaperController",
]
