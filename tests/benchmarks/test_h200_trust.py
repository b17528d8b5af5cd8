"""The checks that `benchmarks/h200_trust.py` makes on a GPU hold here too, and see what is wrong."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import forked
import pytest

from kernelworks.dispatch.op import OPS

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "h200_trust.py"


@pytest.fixture(scope="module")
def trust() -> Any:
    spec = importlib.util.spec_from_file_location("h200_trust", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass asks for it
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("op", "checks"), [("silu_mul", 17), ("adamw_", 1)])
def test_every_check_of_an_op_holds(trust: Any, op: str, checks: int) -> None:
    found = trust.all_checks([op], "cpu", trust.spread(OPS[op])[1:2])
    assert len({f["check"] for f in found}) == checks, found
    assert [f for f in found if f["wrong"]] == []


WRONG = """
import json, sys
sys.path.insert(0, sys.argv[1])
import h200_trust
import torch
from kernelworks.dispatch.op import OPS

OPS["gelu"]._composite = lambda x, approximate: 2 * torch.sin(x)
case = next(c for c in OPS["gelu"].contract.cases if c.name.endswith("N=8"))
print(json.dumps([f["check"] for f in h200_trust.all_checks(["gelu"], "cpu", [case]) if f["wrong"]]))
"""


def test_a_wrong_op_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op whose composite is another function: every check says so, in a process that has called no op before.
    Without tuning records and without the C++ entry, its composite is what runs, and what autograd derives."""
    monkeypatch.setenv("KERNELWORKS_NATIVE", "0")
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    done = forked.python(str(SCRIPT.parent), code=WRONG, loaded=("torch",))
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout.splitlines()[-1])) >= {"forward", "gradients", "negative bit"}
