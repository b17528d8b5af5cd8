"""The best program found, as a patch on the program's own source: applied with git, and run."""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelworks.diagnose.fix.patch import as_patch, patch_folder
from kernelworks.diagnose.fix.source_edit import NoPlace, Source
from kernelworks.diagnose.optimization import EVERYWHERE, PROCESS, Candidate, Scene, Site, kind_name
from kernelworks.diagnose.optimizations import (
    cast_weights,
    channels_last,
    fewer_bits,
    fused_optimizer,
    gradient_clipping,
    swap,
    swapped_functions,
    threads,
    torch_compile,
)
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.sites.modules import Roots
from kernelworks.machine.float32_products import Float32Products
from kernelworks.profile.program import from_target
from kernelworks.records import Diagnosis
from kernelworks.report.next_steps import apply_words

PROGRAM = '''\
"""A program of somebody's."""

import os

os.environ["SOMEBODYS"] = "1"
from torch import nn
from torch.optim import AdamW
from torch.nn.utils import clip_grad_norm_
import torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.first(x).relu())


model = Net()
model.train()
optimizer = AdamW(
    model.parameters(),
    lr=1e-2,  # large
)
X = torch.linspace(-1, 1, 32).view(4, 8)


class Solver:
    def __init__(self):
        self.at = torch.zeros(4)

    @staticmethod
    def move(x):
        return (x * 0.5).sin()

    def step(self, x):
        self.at = self.at + x.mean(-1)
        return x * 0.5


def energy(x):
    return (x * x).sum()


def work():
    optimizer.zero_grad(set_to_none=False)
    loss = model(X).square().mean() + energy(X)
    loss.backward()
    clip_grad_norm_(model.parameters(), 1e3)
    optimizer.step()
    return loss.detach()
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def written(folder: Path, text: str, name: str = "theirs") -> tuple[Path, ModuleType]:
    path = folder / f"{name}.py"
    path.write_text(text)
    return path, loaded(path)


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    torch.manual_seed(0)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def theirs_alone() -> Iterator[None]:
    products = Float32Products.of_process()
    yield
    products.restore()
    sys.modules.pop("theirs", None)


def scene_of(module: ModuleType, *functions: Any) -> Scene:
    roots: list[Any] = [getattr(module, "model", None), *(Function(each) for each in functions)]
    optimizer = getattr(module, "optimizer", None)
    return Scene(
        Roots(tuple(root for root in roots if root is not None), (), fresh=False),
        optimizers=(optimizer,) if optimizer is not None else (),
    )


def applied(folder: Path, patch: str) -> None:
    (folder / "found.patch").write_text(patch)
    for more in (["--check"], []):
        done = subprocess.run(
            ["git", "apply", *more, "found.patch"], cwd=folder, capture_output=True, text=True, check=False,
            env={"GIT_CEILING_DIRECTORIES": str(folder.parent), "PATH": "/usr/bin:/bin:/usr/local/bin"},
        )  # fmt: skip
        assert not done.returncode, done.stderr + patch


def compile_candidate(scene: Scene, root: Any, **how: str) -> Candidate:
    site = scene.site(root)
    mode = next(mode for mode in torch_compile.MODES if mode.how == how)
    written_as = root.source_name if isinstance(root, Function) else ""
    return torch_compile.OPTIMIZATION._candidate(site, mode, written=written_as)


def test_each_change_is_written_where_it_belongs(folder: Path) -> None:
    path, module = written(folder, PROGRAM)
    plain = [loaded(path).work() for _ in range(1)]
    plain += [sys.modules["theirs"].work() for _ in range(2)]
    module = loaded(path)
    scene = scene_of(module, module.energy)
    energy: Any = scene.roots.modules[1]
    optimizer = next(o for o in fused_optimizer.OPTIMIZATION.candidates(scene) if o.option("how") == "fused")
    candidates = [
        compile_candidate(scene, module.model),
        compile_candidate(scene, energy, mode="max-autotune-no-cudagraphs"),
        optimizer,
        gradient_clipping.OPTIMIZATION._candidate(gradient_clipping.SCALED),
        Candidate("threads", PROCESS, "one thread", code="torch.set_num_threads(1)", options=(("number", 1),)),
    ]
    patch = as_patch(candidates, scene, path, module.work)
    assert patch.startswith("kernelworks: 5 of 5 changes have a place of their own in the source\n--- a/theirs.py")
    applied(folder, patch)
    text = path.read_text()
    for line in (
        "model.train()\nmodel.compile()\noptimizer = AdamW(",
        "    lr=1e-2,  # large\n    fused=True,\n)",
        '@torch.compile(mode="max-autotune-no-cudagraphs")\ndef energy(x):',
        "    norm_of_gradients = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if",
        "    if not norm_of_gradients < 1e3:",
        "import torch\ntorch.set_num_threads(1)\n",
    ):
        assert line in text, text
    changed = text.replace('@torch.compile(mode="max-autotune-no-cudagraphs")', '@torch.compile(backend="eager")')
    path.write_text(
        changed.replace("model.compile()", 'model.compile(backend="eager")').replace(
            "set_num_threads(1)", "get_num_threads()"
        )
    )
    module = loaded(path)
    for want in plain:
        torch.testing.assert_close(module.work(), want)
    assert module.optimizer.param_groups[0]["fused"] is True and module.model._compiled_call_impl is not None


@pytest.mark.parametrize("backend", ["kernelworks", "default"])
def test_a_method_is_compiled_by_a_decorator(backend: str, folder: Path) -> None:
    path, module = written(folder, PROGRAM)
    scene = scene_of(module, module.Solver.step, module.Solver.__dict__["move"].__func__)
    how = {"backend": "kernelworks"} if backend == "kernelworks" else {}
    candidates = [compile_candidate(scene, root, **how) for root in scene.roots.modules[1:]]
    assert [candidate.code.partition(" ")[0] for candidate in candidates] == ["Solver.step", "Solver.move"]
    applied(folder, as_patch(candidates, scene, path, module.work))
    given = '(backend="kernelworks")' if how else ""
    text = path.read_text()
    assert f"    @staticmethod\n    @torch.compile{given}\n    def move(x):" in text
    assert f"    @torch.compile{given}\n    def step(self, x):" in text
    ast_ok = loaded(path)
    assert callable(ast_ok.Solver().step)


def test_what_has_no_one_place_is_told_at_the_entry_point_with_the_reason(folder: Path) -> None:
    path, module = written(folder, PROGRAM + "\n\nmore = [AdamW(model.parameters()), AdamW(model.parameters())]\n")
    scene = scene_of(module)
    scene.optimizers = (module.more[0],)
    optimizer = next(o for o in fused_optimizer.OPTIMIZATION.candidates(scene) if o.option("how") == "fused")
    merged = Candidate(
        "merged projections", scene.site(module.model), "q, k as one", code="weight = ...\nq, k = ...",
        options=(("groups", [["first", "last"]]),),
    )  # fmt: skip
    swapped = Candidate("swap", EVERYWHERE, "ours", code="kernelworks.swap(model)")
    patch = as_patch([optimizer, merged, swapped], scene, path, module.work)
    assert patch.splitlines()[0] == (
        "kernelworks: 1 of 3 changes have a place of their own in the source; the others are in a comment at the entry "
        "point, with the lines to write: fused optimizer, merged projections"
    )
    applied(folder, patch)
    text = path.read_text()
    assert "model.train()\nkernelworks.swap(model)\n" in text and "import torch\nimport kernelworks\n" in text
    begin = text.index("# kernelworks found these too")
    assert text[begin:].index("def work():") < 800
    assert "#     AdamW(..., fused=True)\n" in text[begin:] and "#     q, k = ...\ndef work():" in text[begin:]
    line = next(n for n, said in enumerate(PROGRAM.splitlines(), 1) if "def forward" in said)
    assert f"#   (it goes into the forward of Net, theirs.py:{line})\n" in text
    assert "calls AdamW 2 times)\n" in text
    loaded(path)


@pytest.mark.parametrize("name", ["theirs", "their program"])
@pytest.mark.parametrize("where", ["below", "above", "elsewhere"])
def test_a_patch_applies_where_it_is_said(
    where: str, name: str, folder: Path, diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a folder below a repository's root, where git is silent about a patch whose paths start from the root."""
    assert diagnosis.fix is not None
    environment = {"GIT_CEILING_DIRECTORIES": str(folder.parent), "PATH": "/usr/bin:/bin:/usr/local/bin"}
    subprocess.run(["git", "init", "-q", "."], cwd=folder, env=environment, check=True)
    below, here = folder / "a" / "b", {"below": "a/b", "above": "a", "elsewhere": "c"}[where]
    below.mkdir(parents=True)
    (folder / "c").mkdir()
    monkeypatch.syspath_prepend(str(below))
    path, module = written(below, PROGRAM, name)
    monkeypatch.chdir(folder / here)
    swapped = Candidate("swap", EVERYWHERE, "ours", code="kernelworks.swap(model)")
    text, start = as_patch([swapped], scene_of(module), path, module.work), patch_folder(path)
    assert start == ("../a/b" if where == "elsewhere" else "")
    Path("fix.diff").write_text(text)
    fix = dataclasses.replace(diagnosis.fix, patch=text, patch_folder=start)
    command = apply_words(fix, "fix.diff")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr + text
    assert "kernelworks.swap(model)" in path.read_text(), f"{command} changed nothing"


def test_the_comment_stands_ahead_of_what_decorates_the_entry_point(folder: Path) -> None:
    path, module = written(folder, PROGRAM.replace("def work():", "@torch.enable_grad()\ndef work():"))
    candidate = Candidate("CUDA graph", Site("module", kind_name(module.model)), "captured", code="model = ...")
    applied(folder, as_patch([candidate], scene_of(module), path, module.work))
    text = path.read_text()
    assert "example inputs" in text and "#     model = ...\n@torch.enable_grad()\ndef work():" in text


def test_one_of_several_optimizers_is_known_by_its_name(folder: Path) -> None:
    path, module = written(folder, PROGRAM + "\n\nsecond = AdamW(model.parameters(), lr=1e-3)\n")
    scene = scene_of(module)
    scene.optimizers = (module.second,)
    candidate = next(o for o in fused_optimizer.OPTIMIZATION.candidates(scene) if o.option("how") == "fused")
    applied(folder, as_patch([candidate], scene, path, module.work))
    assert "second = AdamW(model.parameters(), lr=1e-3, fused=True)" in path.read_text()
    assert loaded(path).optimizer.param_groups[0]["fused"] is None


HEAD = "from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n\n\n"
LAYOUTS = {
    "local": "def work():\n    net = Net().eval()\n    return net\n",
    "method's": (
        "class Holder:\n    def __init__(self):\n        self.net = Net()\n        self.net.eval()\n"
        "        self.more = 1\n\n\ndef work():\n    return Holder().net\n"
    ),
    "annotated, no end of line": "def work():\n    return net\n\n\nnet: Net = Net()",
    "in an if": "def work():\n    return net\n\n\nif True:\n    net = Net()\n",
    "a part of what is never called": (
        "class Both(nn.Module):\n    def __init__(self, one):\n        super().__init__()\n        self.net = one\n\n\n"
        "both = Both(Net())\nnets = [Net() for _ in range(2)]\n\n\ndef work():\n    return both.net\n"
    ),
    "in a dictionary": 'NETS = {"one": Net(), "two": Net()}\n\n\ndef work():\n    return NETS["two"]\n',
    "in a row": "other, net = Net(), Net()\nother.eval()\n\n\ndef work():\n    return net\n",
    "in a row, local": "def work():\n    one, net = 1, Net()\n    return net\n",
    "closed over": (
        "def make(kind):\n    net = kind()\n\n    def run():\n        return net\n\n    return run\n\n\n"
        "work, other = make(Net), make(Net)\n"
    ),
    "by a function": (
        "def build():\n    return Net().eval()\n\n\ndef work(kept=[]):\n    if not kept:\n        net = build()\n"
        "        kept.append(net)\n    return kept[0]\n"
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_model_is_found_where_it_is_built(name: str, newline: str, folder: Path) -> None:
    path, module = written(folder, "")
    path.write_bytes((HEAD + LAYOUTS[name]).replace("\n", newline).encode())
    module = loaded(path)
    model = module.work()
    scene = Scene(Roots((model,), (), fresh=False))
    candidate = Candidate("channels_last", EVERYWHERE, "last", code="model.to(memory_format=torch.channels_last)")
    applied(folder, as_patch([candidate], scene, path, module.work))
    text = path.read_bytes().decode()
    held = "self.net" if name in ("method's", "a part of what is never called") else "net"
    held = "NETS['two']" if name == "in a dictionary" else held
    assert f"{held}.to(memory_format=torch.channels_last)" in text and f"import torch{newline}" in text
    assert text.count("\n") == text.count("\r\n") or newline == "\n"
    assert isinstance(loaded(path).work(), torch.nn.Module)


AMBIGUOUS = {
    "twice": "a = Net()\nb = Net()\n", "in a line": "if True: a = Net()\n", "two names": "a = b = Net()\n",
    "a list": "a = [Net()]\n", "others in the line": "a = Net(); b = 1\n",
}  # fmt: skip


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_model_that_is_built_nowhere_or_twice_has_no_place(name: str, folder: Path) -> None:
    head = "from torch import nn\nclass Net(nn.Module):\n    pass\n"
    path, module = written(folder, f"{head}{AMBIGUOUS[name]}def work(): return 1\n")
    scene = Scene(Roots((module.Net(),), (), fresh=False))
    candidate = Candidate("channels_last", EVERYWHERE, "last", code="model.to(memory_format=torch.channels_last)")
    patch = as_patch([candidate], scene, path, module.work)
    assert patch.startswith("kernelworks: 0 of 1")
    applied(folder, patch)
    assert "#     model.to(memory_format=torch.channels_last)\ndef work" in path.read_text()
    loaded(path)


MORE = """\
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.up, self.head = nn.ConvTranspose2d(4, 4, 2), nn.Linear(4, 6)
        self.scaled, self.last = nn.BatchNorm2d(4), nn.BatchNorm1d(6)

    def forward(self, x):
        return self.last(self.head(self.scaled(self.up(self.body(x))).mean((2, 3))))


def bent(x):
    return F.gelu(x, approximate="tanh")


def activated(x):
    return bent(x) + torch.nn.functional.softmax(x, -1)


model = Net()
with torch.no_grad():
    for part in model.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            part.running_mean.uniform_(-1, 1)
            part.running_var.uniform_(0.5, 2)
model.eval()
X = torch.randn(2, 3, 8, 8)


@torch.no_grad()
def work():
    return activated(model(X))
"""
PAIRS = [("body.0", "body.1"), ("up", "scaled"), ("head", "last")]


@pytest.mark.parametrize("name", ["folded norms", "swap in functions", "bf16", "tf32"])
def test_each_optimization_that_has_lines_is_placed_and_runs(name: str, folder: Path) -> None:
    path, module = written(folder, MORE)
    want, scene = module.work(), scene_of(module, module.activated)
    if name == "folded norms":
        candidate = Candidate(name, scene.site(module.model), "three norms", options=(("pairs", PAIRS),))
    elif name == "swap in functions":
        candidate = next(iter(swapped_functions.OPTIMIZATION.candidates(scene)))
    else:
        says, code = fewer_bits.SAYS[name]
        site = PROCESS if name == "tf32" else EVERYWHERE
        candidate = Candidate("fewer bits", site, says, code=code.format(device="cpu"))
    patch = as_patch([candidate], scene, path, module.work)
    assert patch.startswith("kernelworks: 1 of 1")
    applied(folder, patch)
    text, module = path.read_text(), loaded(path)
    got = module.work()
    near = {"rtol": 0.05, "atol": 0.05} if name == "bf16" else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, want, **near)
    if name == "folded norms":
        assert isinstance(module.model.last, torch.nn.Identity) and text.index("fuse_conv") < text.index("X = torch")
    elif name == "swap in functions":
        assert 'return kernelworks.gelu(x, approximate="tanh")' in text
        assert "return bent(x) + kernelworks.softmax(x, -1)" in text
    elif name == "bf16":
        assert not torch.equal(got, want)


def test_weights_that_are_cast_once_and_weights_that_are_tied(folder: Path) -> None:
    path, module = written(folder, MORE)
    scene = scene_of(module)
    code = cast_weights._code(scene, torch.bfloat16)
    candidate = Candidate("weights cast once", EVERYWHERE, "once", code=code)
    applied(folder, as_patch([candidate], scene, path, module.work))
    made = loaded(path).model
    assert made.head.weight.dtype is torch.bfloat16 and made.last.weight.dtype is torch.float32
    module.model.table = torch.nn.Embedding(6, 4)
    module.model.table.weight = module.model.head.weight
    tied = Candidate("weights cast once", EVERYWHERE, "once", code=cast_weights._code(scene, torch.bfloat16))
    path.write_text(MORE)
    patch = as_patch([tied], scene, path, module.work)
    assert "another module shares a weight of it" in patch and "\n+    part.to" not in patch


CALLS = {
    "f()": "f(a=1)", "f(1)": "f(1, a=1)", "f(1,)": "f(1, a=1)", "f(x, b=2)": "f(x, b=2, a=1)", "f(a=0)": "f(a=1)",
    "f(\n    x,\n)": "f(\n    x,\n    a=1,\n)", "f(\n    x\n)": "f(\n    x, a=1\n)", "f((x))": "f((x), a=1)",
    "f(**{})": "f(**{}, a=1)", "f('é', x)": "f('é', x, a=1)", "f(\n    x, # ,\n)": "f(\n    x, # ,\n    a=1,\n)",
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_an_argument_is_put_into_a_call_however_it_is_written(call: str, tmp_path: Path) -> None:
    path = tmp_path / "it.py"
    path.write_text(f"ä = {call}\nb = 1\n")
    source = Source(path)
    (found,) = source.calls("f")
    source.keyword(found, "a", "1")
    assert source.edited_text() == f"ä = {CALLS[call]}\nb = 1\n"


def test_what_cannot_be_written_is_left() -> None:
    """A generator as the only argument would need parentheses; two changes of one place are none."""
    path = Path(__file__).with_name("nowhere.py")
    with pytest.raises(OSError, match="nowhere"):
        Source(path)
    source = Source(Path(__file__))
    call = next(each for each in source.calls("Path") if len(each.args) == 1)
    for text in ("a", "b"):
        source.replace_node(call, text)
    with pytest.raises(NoPlace):
        source.edited_text()
    assert source.diff(Path(__file__).parent) == ""


def test_a_program_knows_the_file_that_it_begins_in(folder: Path) -> None:
    path, module = written(folder, PROGRAM)
    assert from_target(f"{path}:work").file == path and from_target(str(path)).file == path
    assert as_patch([], Scene(Roots((), (), fresh=False)), path, module.work) == ""
    candidate = Candidate("swap", Site("module", kind_name(module.model)), "ours", code="kernelworks.swap(model)")
    assert as_patch([candidate], Scene(Roots((module.model,), (), fresh=False)), None) == ""
    assert {swap.OPTIMIZATION.name, channels_last.OPTIMIZATION.name, threads.OPTIMIZATION.name} <= {
        "swap",
        "channels_last",
        "threads",
    }
