"""Bad input to the equations and the closed forms."""

from __future__ import annotations

import torch

from hdet import functional as F  # noqa: N812
from tests.bad_input.builders import (
    INF,
    NAN,
    ONES,
    TYPE,
    VALUE,
    Case,
)

CASES: dict[str, Case] = {
    "multipliers of no replica": (
        lambda: F.spread_multipliers(0, 0.1),
        VALUE,
        r"num_replicas must be an integer >= 1, got 0",
    ),
    "multipliers of half a replica": (
        lambda: F.spread_multipliers(1.5, 0.1),
        TYPE,
        r"1\.5 \(float\)",
    ),
    "multipliers of True": (lambda: F.spread_multipliers(True, 0.1), TYPE, r"True \(bool\)"),
    "negative spread": (lambda: F.spread_multipliers(2, -0.1), VALUE, r"in \[0, inf\], got -0\.1"),
    "NaN spread": (lambda: F.spread_multipliers(2, NAN), VALUE, "spread_ratio.*got nan"),
    "spread as text": (lambda: F.spread_multipliers(2, "0.1"), TYPE, r"'0\.1' \(str\)"),
    "seed as float": (lambda: F.permutation(0.5, 0, 0, 2), TYPE, "seed"),
    "negative cycle": (lambda: F.permutation(0, -1, 0, 2), VALUE, "cycle must be an integer >= 0"),
    "negative index": (lambda: F.permutation(0, 0, -1, 2), VALUE, "index must be an integer >= 0"),
    "permutation of nobody": (lambda: F.permutation(0, 0, 0, 0), VALUE, "num_replicas"),
    "temperature of zero": (
        lambda: F.softmax_weights(ONES, 0.0),
        VALUE,
        r"temperature must be a finite number in \(0, inf\], got 0\.0",
    ),
    "infinite temperature": (lambda: F.softmax_weights(ONES, INF), VALUE, "temperature.*got inf"),
    "NaN among the losses": (
        lambda: F.softmax_weights(torch.tensor([1.0, NAN]), 0.1),
        VALUE,
        "losses_R must be finite.*leave out",
    ),
    "losses of two dimensions": (
        lambda: F.softmax_weights(torch.ones(2, 2), 0.1),
        VALUE,
        r"\(2, 2\)",
    ),
    "no losses": (lambda: F.softmax_weights(torch.ones(0), 0.1), VALUE, "at least one"),
    "losses as text": (lambda: F.softmax_weights("abc", 0.1), TYPE, "losses_R.*'abc'"),
    "weights of another length": (
        lambda: F.hypergradient(ONES, torch.ones(2)),
        VALUE,
        r"weights_R.*3 entries, got shape \(2,\)",
    ),
    "values of no dimension": (lambda: F.hypergradient(torch.ones(()), ONES), VALUE, "values_R"),
    "momentum of one": (
        lambda: F.meta_update(0, 0, 1, meta_momentum=1.0, meta_lr=0.5, base_decay=0),
        VALUE,
        r"meta_momentum must be a finite number in \[0, 1\), got 1\.0",
    ),
    "negative meta_lr": (
        lambda: F.meta_update(0, 0, 1, meta_momentum=0.9, meta_lr=-1, base_decay=0),
        VALUE,
        "meta_lr.*got -1",
    ),
    "decay of one": (
        lambda: F.meta_update(0, 0, 1, meta_momentum=0.9, meta_lr=1, base_decay=1.0),
        VALUE,
        "base_decay.*got 1.0",
    ),
    "NaN velocity": (
        lambda: F.meta_update(NAN, 0, 1, meta_momentum=0.9, meta_lr=1, base_decay=0),
        VALUE,
        "velocity",
    ),
    "infinite hypergradient": (
        lambda: F.meta_update(0, INF, 1, meta_momentum=0.9, meta_lr=1, base_decay=0),
        VALUE,
        "delta",
    ),
    "div_factor of zero": (lambda: F.base_decay(0, 1e4, 5), VALUE, r"div_factor.*\(0, inf\]"),
    "negative final_div_factor": (lambda: F.base_decay(25, -1, 5), VALUE, "final_div_factor"),
    "decay over no cycles": (lambda: F.base_decay(25, 1e4, 0), VALUE, "num_cycles"),
    "start ratio of zero": (
        lambda: F.base_decay(25, 1e4, 5, start_ratio=0.0),
        VALUE,
        "start_ratio",
    ),
    "decay that overflows": (
        lambda: F.base_decay(25, 1e4, 1e-5, literal=True),
        VALUE,
        "num_cycles must leave .*got 1e-05",
    ),
    "decay of everything in a cycle": (lambda: F.base_decay(25, 1e4, 1e-5), VALUE, "more cycles"),
    "decay over a factor that underflows": (
        lambda: F.base_decay(1e-200, 1e-200, 5),
        VALUE,
        "factor of 0 in all",
    ),
    "literal decay as text": (lambda: F.base_decay(25, 1e4, 5, "no"), TYPE, "literal must be True"),
    "three_phase as text": (lambda: F.one_cycle(1, 5, three_phase="no"), TYPE, "three_phase must"),
    "NaN among the values": (
        lambda: F.hypergradient(torch.tensor([NAN, 1.0]), torch.tensor([0.5, 0.5])),
        VALUE,
        "values_R must be finite",
    ),
    "NaN among the weights": (
        lambda: F.hypergradient(torch.ones(2), torch.tensor([NAN, 0.5])),
        VALUE,
        "weights_R must be finite",
    ),
    "negative norm": (lambda: F.warm_noise_std(-1, 5, 0.01), VALUE, "param_norm"),
    "no parameters": (lambda: F.warm_noise_std(1, 0, 0.01), VALUE, "num_params"),
    "negative noise": (lambda: F.warm_noise_std(1, 5, -0.01), VALUE, "noise_scale"),
    "schedule at a negative step": (lambda: F.cosine(-1, 10), VALUE, "step must be"),
    "schedule of no steps": (lambda: F.linear(0, 0), VALUE, "total_steps"),
    "anneal above one": (lambda: F.hold_then_anneal(0, 10, anneal=1.5), VALUE, "anneal"),
    "negative warmup": (lambda: F.cosine(0, 10, warmup_steps=-1), VALUE, "warmup_steps"),
    "unknown anneal strategy": (
        lambda: F.one_cycle(0, 10, anneal_strategy="exp"),
        VALUE,
        "anneal_strategy must be 'cos' or 'linear', got 'exp'",
    ),
    "pct_start above one": (lambda: F.one_cycle(0, 10, pct_start=2), VALUE, "pct_start"),
}
