"""The house rules: imports point one way, files stay small, names are explained."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import hdet

ROOT = Path(hdet.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TESTS = sorted(Path(__file__).parent.rglob("*.py"))
BENCHMARKS = sorted((Path(__file__).parent.parent / "benchmarks").rglob("*.py"))
STAGES = ("signals", "controllers", "hyperparameters", "replicas", "converge")

# Who may import whom, besides errors, checks and tensors, which anybody may.
ALLOWED = {
    "functional": set(),
    "optimizers": set(),
    "ownership": set(),
    "agreement": {"optimizers", "replicas"},
    "tensors": set(),
    "checks": set(),
    "errors": set(),
    "signals": {"functional", "ownership"},
    "controllers": {"functional", "signals.base"},
    "hyperparameters": {"functional"},
    "converge": {"optimizers", "replicas.base"},
    "replicas": {"functional", "optimizers", "ownership", "converge.buckets"},
    "plan": {"hyperparameters", "saved"},
    "saved": set(),
    "assignment": {"functional", "hyperparameters"},
    "values": {
        "assignment",
        "controllers",
        "hyperparameters",
        "ownership",
        "plan",
        "replicas",
        "signals",
    },
    "progress": {"agreement", "converge.buckets", "replicas", "signals"},
    "roll_call": {"agreement", "converge", "optimizers", "replicas", "signals"},
    "snapshot": {"optimizers"},
    "updates": {"ownership", "signals"},
    "fan_out": {"replicas"},
    "guard": {"ownership", "replicas", "roll_call", "signals", "snapshot"},
    "arguments": {"controllers", "guard", "hyperparameters", "optimizers", "signals"},
    "averaging": {
        "converge",
        "hyperparameters",
        "optimizers",
        "replicas",
        "roll_call",
        "signals",
    },
    "warm_start": {"functional", "replicas"},
}
ANYBODY = {"errors", "checks", "tensors"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: Path) -> set[str]:
    """Modules of ours that a file imports, without the leading `hdet.`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "hdet":
            if node.module == "hdet":
                found |= {alias.name for alias in node.names}
            else:
                found.add(node.module.removeprefix("hdet."))
    return found


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    room = name_of(path).split(".")[0]
    if room not in ALLOWED:
        return
    for module in imports_of(path):
        own = module.split(".")[0]
        allowed = ALLOWED[room] | ANYBODY | {room}
        assert any(module == a or module.startswith(f"{a}.") for a in allowed), (
            f"{name_of(path)} imports {module}: {own} is above it"
        )


def test_every_room_below_the_cycle_has_its_rule() -> None:
    above = {"", "__main__", "cycle", "schedulers", "cli", "checkpointing"}
    assert {name_of(path).split(".")[0] for path in FILES} <= set(ALLOWED) | above


def test_only_the_replicas_touch_torch_distributed() -> None:
    users = {name_of(path) for path in FILES if "torch.distributed" in _code(path)}
    assert users == {"replicas.distributed"}


def _code(path: Path) -> str:
    """The file's import statements, as text."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return "\n".join(ast.unparse(n) for n in nodes if isinstance(n, ast.Import | ast.ImportFrom))


@pytest.mark.parametrize("path", [*FILES, *TESTS, *BENCHMARKS], ids=lambda path: path.stem)
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, node.name


def test_every_public_name_is_explained() -> None:
    for name in hdet.__all__:
        documented = getattr(hdet, name)
        assert inspect.getdoc(documented), name
        if inspect.isclass(documented) and documented.__module__.startswith("hdet"):
            for member, value in vars(documented).items():
                if not member.startswith("_") and callable(value):
                    assert inspect.getdoc(value), f"{name}.{member}"


def test_equations_are_cited_by_number() -> None:
    cited = {
        "spread_multipliers": "Eq. 1",
        "softmax_weights": "Eq. 4",
        "hypergradient": "Eqs. 5-6",
        "meta_update": "Eq. 7",
        "base_decay": "Eq. 8",
        "permutation": "Eq. 9",
        "warm_noise_std": "Eq. 10",
    }
    for name, equation in cited.items():
        assert (inspect.getdoc(getattr(hdet.functional, name)) or "").startswith(equation)


def test_source_is_ascii() -> None:
    for path in [*FILES, *BENCHMARKS]:
        assert path.read_text().isascii(), path


def test_importing_costs_little_beyond_torch_and_loads_no_extra() -> None:
    program = (
        "import sys, time, torch\n"
        "start = time.perf_counter(); import hdet; took = time.perf_counter() - start\n"
        "extras = {'rich', 'matplotlib', 'lightning', 'transformers', 'accelerate'}\n"
        "print(took, sorted(extras & set(sys.modules)))\n"
    )
    took, extras = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split(maxsplit=1)
    assert extras.strip() == "[]"
    assert float(took) < 1.0
