"""What ``import kernelworks`` loads, and what the package shows."""

from __future__ import annotations

import types

import forked
import pytest
import torch

import activations
import kernelworks as kw
import optimizers
import reductions
import schemas
from kernelworks import ops
from kernelworks.dispatch import torch_library
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.registry import OP_PACKAGES

MOST = 0.1  # of the calls that torch's import makes, that ours may make beyond it, with sixty ops

# What one names is loaded, and nothing else; folders of a verb's name never stand in the verb's place.
FRESH = """
import gc, sys
import torch
gc.disable()
import kernelworks as kw
names = dir(kw)

def loaded():
    return {name.removeprefix("kernelworks.") for name in sys.modules if name.startswith("kernelworks.")}

dispatch = {
    f"dispatch.{name}"
    for name in ("autograd", "flop_counter", "generated_code", "mutation", "registry", "torch_import", "torch_library")
}
assert loaded() <= dispatch | {"contract", "contract.complex_numbers", "contract.continuation", "contract.results",
    "contract.tensors", "dispatch", "ops", "ops.generated"}, loaded()

assert callable(kw.softmax) and kw.softmax is kw.ops.softmax
assert "ops.reduction.softmax" in loaded() and "ops.norm.rms_norm" not in loaded()
assert not loaded() & {"measure", "climb", "diagnose", "nn", "verify", "report"}
assert not gc.isenabled()
gc.enable()

import kernelworks.measure.bench, kernelworks.diagnose, kernelworks.machine, kernelworks.judge  # the folders, first
import kernelworks.ops.attention.attention, kernelworks.ops.linear.linear

for name in ("bench", "diagnose", "machine", "verify", "swap", "explain", "attention", "linear"):
    assert callable(getattr(kw, name)), name
assert kw.diagnose.__module__ == "kernelworks.diagnose"
assert kw.ops.attention is kw.attention and kw.ops.linear is kw.linear
assert gc.isenabled() and dir(kw) == names
"""

# A program that names operators, run where nothing of them is loaded: exported, in TorchScript, by the dispatcher.
SAVED = """
import sys
import torch
import kernelworks

assert "kernelworks.dispatch.op" not in sys.modules
x = torch.arange(12.0).view(3, 4)
want = torch.softmax(torch.nn.functional.gelu(x), 1)
exported = torch.export.load(sys.argv[1] + "/exported.pt2")
scripted = torch.jit.load(sys.argv[1] + "/scripted.pt")
assert "kernelworks.dispatch.op" not in sys.modules
torch.testing.assert_close(exported.module()(x), want)
assert "kernelworks.ops.activation.gelu" in sys.modules and "kernelworks.ops.norm.rms_norm" not in sys.modules
torch.testing.assert_close(scripted(x), want)
"""

COMPILED = """
import torch
import kernelworks as kw

def program(x):
    return kw.gelu(kw.softmax(x, -1))

x = torch.randn(3, 8, requires_grad=True)
torch.testing.assert_close(torch.compile(program, fullgraph=True, backend="aot_eager")(x), program(x))
"""

# An op package is loaded in the midst of whatever asks for it first.
WITHIN = """
import sys
import torch
import kernelworks
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from kernelworks.dispatch.registry import OP_PACKAGES, load_op_package

class Refuses(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(func)

with Refuses(), torch.device("meta"), torch.inference_mode():
    for package in OP_PACKAGES.values():
        load_op_package(package)
with FakeTensorMode():
    made = torch.ops.kernelworks.rms_norm(torch.ones(3, 4), torch.ones(4), 1e-6, None)
assert [tuple(t.shape) for t in made] == [(3, 4), (0,)]
"""

# Counted, not timed: how many functions are called, of ours beside torch's own.
SHARE = """
import sys

calls = 0

def counted(frame, event, argument):
    global calls
    calls += event == "call"

sys.setprofile(counted)
import torch

of_torch, calls = calls, 0
import kernelworks
from kernelworks.dispatch import torch_library
from kernelworks.ops.generated import SCHEMAS

for i in range(60 - len(SCHEMAS)):
    schemas = {p: s.replace("layer_norm", f"one_more_{i}") for p, s in SCHEMAS["layer_norm"].items()}
    torch_library.define(f"one_more_{i}", schemas)
sys.setprofile(None)
print(calls / of_torch)
"""


def python(code: str, *arguments: str, loaded: str = "torch") -> str:
    """Where that module is loaded, and the package is not."""
    done = forked.python(*arguments, code=code, loaded=(loaded,))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("code", [FRESH, COMPILED, WITHIN], ids=["fresh", "compiled", "within"])
def test_what_is_named_is_loaded(code: str) -> None:
    python(code)


FIRST = [
    "import kernelworks as kw; kw.gelu", "from kernelworks import rms_norm", "import kernelworks.ops as o; o.linear",
    "from kernelworks.nn.swap import swap", "import kernelworks.contract; from kernelworks import relu",
    "import kernelworks.compile", "import kernelworks as kw; kw.fuse",
]  # fmt: skip


@pytest.mark.parametrize("first", FIRST)
def test_a_program_may_name_the_package_before_torch(first: str) -> None:
    """As sorted imports do: `from kernelworks import rms_norm`, then `import torch`."""
    python(f"{first}\nimport torch\ntorch.ops.kernelworks.linear.default", loaded="sys")


def test_the_import_is_cheap_with_sixty_ops() -> None:
    assert 0 < float(python(SHARE, loaded="sys")) < MOST


def test_programs_that_name_operators_load(tmp_path) -> None:  # type: ignore[no-untyped-def]
    class Program(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.kernelworks.softmax(torch.ops.kernelworks.gelu(x, "none", None), 1, None)

    x = torch.ones(3, 4)
    torch.export.save(torch.export.export(Program(), (x,)), tmp_path / "exported.pt2")
    torch.jit.script(Program()).save(str(tmp_path / "scripted.pt"))
    python(SAVED, str(tmp_path))


def test_what_is_generated_is_current() -> None:
    assert schemas.generate() == schemas.GENERATED.read_text(encoding="utf-8"), "run `make docs`"
    assert [tool.stale() for tool in (activations, optimizers, reductions)] == [{}, {}, {}], "run `make docs`"


def test_each_op_is_in_the_family_of_its_contract() -> None:
    assert list(OPS)[: len(ops.NAMES)] == list(ops.NAMES)
    for family, names in ops.FAMILIES.items():
        for name in names:
            op = OPS[name]
            assert (op.name, op.contract.family) == (name, family)
            assert op.op_package.name == OP_PACKAGES[name].rsplit(".", 1)[1]


def test_a_schema_that_the_room_has_changed_counts() -> None:
    torch_library.define("changed", {"forward": "changed(Tensor x, str? op_kernel=None) -> Tensor"})
    before = torch.ops.kernelworks.changed.default
    torch_library.define("changed", {"forward": "changed(Tensor x, str? op_kernel=None) -> Tensor"})
    assert torch.ops.kernelworks.changed.default is before
    torch_library.define("changed", {"forward": "changed(Tensor x, int dim, str? op_kernel=None) -> Tensor"})
    assert "int dim" in str(torch.ops.kernelworks.changed.default._schema)


def test_dir_is_the_public_face() -> None:
    assert dir(kw) == sorted(kw.__all__)
    for name in kw.__all__:
        assert isinstance(getattr(kw, name), types.ModuleType) is (name == "nn"), name


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'kernelworks' has no attribute 'colour'"):
        kw.colour  # type: ignore[attr-defined]  # noqa: B018


def test_a_program_that_names_the_package_compiles_whole() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return kw.gelu(kw.softmax(x, -1))

    x = torch.randn(3, 8)
    torch.testing.assert_close(torch.compile(program, fullgraph=True, backend="eager")(x), program(x))
