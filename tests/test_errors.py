"""Every bad input has its line: argument, allowed range, value received, remedy.

The inputs are in tests/bad_input; errors that need several processes are in test_agreement.py,
test_process_groups.py and test_converge.py.
"""

from __future__ import annotations

import warnings

import pytest

import hdet
from hdet import functional as F  # noqa: N812
from hdet.errors import HDETError, InvalidTypeError, InvalidValueError
from tests.bad_input import CASES
from tests.bad_input.builders import ensemble, one_cycle, saved, sgd


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str) -> None:
    call, kind, message = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hdet.HDETWarning)  # a controller without a spread
        with pytest.raises(kind, match=message) as caught:
            call()
    assert isinstance(caught.value, HDETError)
    assert isinstance(caught.value, ValueError | TypeError)
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value), "it does not say what to do"


def test_there_are_at_least_three_hundred() -> None:
    assert len(CASES) >= 300


def test_a_refused_call_leaves_the_optimizer_as_it_was() -> None:
    optimizer = sgd()
    before = dict(optimizer.param_groups[0])
    with pytest.raises(InvalidValueError):
        one_cycle(optimizer=optimizer, cycle_steps=0)
    assert dict(optimizer.param_groups[0]) == before


def test_a_refused_state_leaves_the_ensemble_as_it_was() -> None:
    live = ensemble()
    before = live.state_dict()
    with pytest.raises(InvalidValueError):
        live.load_state_dict(saved(hyperparameters={"lr/7": {"base": 1.0}}))
    assert live.state_dict() == before


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(InvalidTypeError) as caught:
        F.spread_multipliers("x" * 1000, 0.1)
    assert len(str(caught.value)) < 200
