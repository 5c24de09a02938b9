"""[2] How a base value moves."""

from hdet.controllers.base import AbstractController
from hdet.controllers.fixed import FixedController
from hdet.controllers.paper import PaperController

__all__ = ["AbstractController", "FixedController", "PaperController"]
