"""States that cannot be restored."""

from __future__ import annotations

from tests.bad_input.builders import (
    INF,
    NAN,
    TYPE,
    VALUE,
    Case,
    ensemble,
    entry_of,
    loading,
    one_cycle,
    saved,
    sgd,
    torch_planned,
)

CASES: dict[str, Case] = {
    "a state without its plan": (
        lambda: ensemble().load_state_dict(
            {key: value for key, value in saved().items() if key != "plan"}
        ),
        VALUE,
        r"whole, got one without \['plan'\]",
    ),
    "a state ahead of its step": (
        lambda: ensemble().load_state_dict(saved(converged_step=9)),
        VALUE,
        r"state\['converged_step'\] must be at most state\['step'\], got 9 at step 0",
    ),
    "a state of no hyperparameters": (
        lambda: ensemble().load_state_dict(saved(hyperparameters=None)),
        TYPE,
        r"state\['hyperparameters'\] must be an instance of dict, got None",
    ),
    "a state whose entry is nothing": (
        lambda: ensemble().load_state_dict(saved(hyperparameters={"lr/0": None})),
        TYPE,
        "state of lr/0 must be an instance of dict, got None",
    ),
    "a state without a base value": (
        lambda: ensemble().load_state_dict(saved(hyperparameters={"lr/0": {}})),
        TYPE,
        "state of lr/0: base must be a finite number.*got None",
    ),
    "a state of a NaN base": (
        lambda: ensemble().load_state_dict(entry_of(base=NAN)),
        VALUE,
        "state of lr/0: base must be a finite number.*got nan",
    ),
    "a state of a negative rate": (
        lambda: ensemble().load_state_dict(entry_of(base=-0.1)),
        VALUE,
        r"state of lr/0: base must be .*\[0, inf\], got -0\.1",
    ),
    "a state of an infinite velocity": (
        lambda: ensemble().load_state_dict(entry_of(velocity=INF)),
        VALUE,
        "state of lr/0: velocity",
    ),
    "a state of who knows who controls": (
        lambda: ensemble().load_state_dict(saved(controlled="no")),
        TYPE,
        r"state\['controlled'\] must be True or False",
    ),
    "a state of who knows who was in charge": (
        lambda: ensemble().load_state_dict(saved(in_charge=None)),
        TYPE,
        r"state\['in_charge'\] must be True or False",
    ),
    "a state of no plan": (
        lambda: ensemble().load_state_dict(saved(plan=None)),
        TYPE,
        r"state\['plan'\] must be an instance of dict, got None",
    ),
    "a state of an empty plan": (
        lambda: ensemble().load_state_dict(saved(plan={})),
        VALUE,
        r"state\['plan'\]\['initial'\] must be a list of 1 numbers, got None",
    ),
    "a state of a plan for nobody": (
        lambda: ensemble().load_state_dict(saved(plan={"initial": []})),
        VALUE,
        r"a list of 1 numbers, got \[\]",
    ),
    "a state of another kind of plan": (
        lambda: torch_planned().load_state_dict(saved()),
        TYPE,
        r"state\['plan'\]\['step'\] must be an integer >= 0, got None",
    ),
    "a scheduler's state that is nothing": (loading(None), TYPE, "state_dict must be an instance"),
    "a scheduler's state that is empty": (loading({}), VALUE, "state_dict must be a OneCycleLR's"),
    "an ensemble's state for a scheduler": (
        loading(saved()),
        VALUE,
        r"OneCycleLR's, got one without \['_last_lr', 'last_epoch', 'total_steps'\]",
    ),
    "a scheduler's state of other groups": (
        lambda: one_cycle(optimizer=sgd(groups=2)).load_state_dict(one_cycle().state_dict()),
        VALUE,
        "a rate for each of the 2 parameter groups",
    ),
    "a scheduler's state at no step": (
        loading({"last_epoch": None, "total_steps": 10, "_last_lr": [0.1]}),
        TYPE,
        r"state_dict\['last_epoch'\]",
    ),
}
