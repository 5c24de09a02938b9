"""One pure function for each equation of the method: no communication, no global generator, no I/O.

Shape suffixes: ``_R`` runs over replicas.
"""

from hdet.functional.meta_update import base_decay, certainty, meta_update, significance_step
from hdet.functional.schedule import cosine, hold_then_anneal, linear, one_cycle
from hdet.functional.signal import hypergradient, regression_slope, softmax_weights
from hdet.functional.spread import permutation, spread_multipliers
from hdet.functional.warm_start import warm_noise_std

__all__ = [
    "base_decay",
    "certainty",
    "cosine",
    "hold_then_anneal",
    "hypergradient",
    "linear",
    "meta_update",
    "one_cycle",
    "permutation",
    "regression_slope",
    "significance_step",
    "softmax_weights",
    "spread_multipliers",
    "warm_noise_std",
]
