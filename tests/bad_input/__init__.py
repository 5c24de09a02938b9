"""Every bad input and the line it must raise, by where it enters."""

from tests.bad_input import (
    checkpoints,
    control,
    ensembles,
    functions,
    schedulers,
    states,
    upheaval,
)
from tests.bad_input.builders import Case

CASES: dict[str, Case] = {
    **functions.CASES,
    **schedulers.CASES,
    **ensembles.CASES,
    **control.CASES,
    **states.CASES,
    **upheaval.CASES,
    **checkpoints.CASES,
}
