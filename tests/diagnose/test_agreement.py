"""Modules that are hard to run twice, to copy or to widen: what a fix compares, and that a wrong swap is seen."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernelworks.diagnose.sites.modules import find_roots
from kernelworks.diagnose.verify.agreement import FLOAT64, ROUNDING, Agreement, compare
from kernelworks.diagnose.verify.precision import PerturbedRounding


class Net(nn.Module):
    """A swappable middle between whatever a program puts before and after it."""

    def __init__(self, before: Callable[..., Any] = lambda x: x, after: Callable[..., Any] = lambda x: x) -> None:
        super().__init__()
        self.norm, self.linear, self.act = nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()
        self.before, self.after = before, after

    def middle(self, x: Tensor) -> Tensor:
        return self.act(self.linear(self.norm(x)))

    def forward(self, x: Any) -> Any:
        return self.after(self.middle(self.before(x)))


def of(forward: Callable[..., Any], **attributes: Any) -> Callable[[], Net]:
    """A Net with this forward and these attributes, made by functions."""

    def make() -> Net:
        made = type("Own", (Net,), {"forward": forward})()
        for name, value in attributes.items():
            setattr(made, name, value())
        return made

    return make


@dataclasses.dataclass
class Wrapped:
    hidden: Tensor
    count: int = 3


class Held:
    """What a module returns, or a cache of its own that it moves along in."""

    def __init__(self, hidden: Tensor | None = None) -> None:
        self.hidden, self.at, self.rows, self.seen = hidden, 0, torch.zeros(3, 16), [0.0]


class Pair(NamedTuple):
    first: Tensor
    rest: dict[str, Any]


def _mixed(self: Net, x: Tensor) -> Tensor:
    return self.act(self.linear(x.bfloat16())).float() + self.norm(x)


def _asserts(self: Net, x: Tensor) -> Tensor:
    assert x.dtype is torch.float32, "float32 only"
    return self.middle(x)


def _zeros(self: Net, x: Tensor) -> Tensor:
    state = torch.zeros(x.shape, dtype=torch.float32)
    state[:] = self.middle(x)
    return state.addmm(state, torch.eye(16))


def _locked(self: Net, x: Tensor) -> Tensor:
    with self.lock:
        return self.middle(x)


def _grouped(self: Net, x: Tensor) -> Tensor:
    ends = torch.tensor([3, 8], dtype=torch.int32)
    return torch._grouped_mm(self.middle(x).bfloat16(), self.experts.bfloat16(), offs=ends)


def _own_rng(self: Net, x: Tensor) -> Tensor:
    return self.middle(x) + torch.rand(x.shape, generator=self.generator)


def _lambda(self: Net, x: Tensor) -> Tensor:
    return self.chain(x)


def _counts(self: Net, x: Tensor) -> Tensor:
    self.calls += 1
    self.seen.append(x)
    return self.middle(x) * self.calls


def _writes(self: Net, x: Tensor) -> None:
    x.copy_(self.middle(x))


def _remembers(self: Net, x: Tensor) -> Tensor:
    self.cache = self.middle(x) if self.cache is None else self.cache + self.middle(x)
    return self.cache


def _moves_on(self: Net, x: Tensor) -> Tensor:
    """In a cache with room for the program's two calls and one more."""
    self.held.rows[self.held.at] = self.middle(x)[0].detach()
    self.held.at += 1
    self.held.seen.append(1.0)
    return self.middle(x) + self.held.rows.sum() + len(self.held.seen)


def _checkpointed(self: Net, x: Tensor) -> Tensor:
    return checkpoint(lambda y: self.middle(self.middle(y.float())), x, use_reentrant=False)


def _checkpointed_otherwise(self: Net, x: Tensor) -> Tensor:
    return checkpoint(lambda y: self.middle(y.float()), self.middle(x), use_reentrant=True)


def _python_random(self: Net, x: Tensor) -> Tensor:
    return self.middle(x) * random.random()


def _with_chain() -> Net:
    net = of(_lambda)()
    net.chain = lambda x: net.act(net.linear(net.norm(x)))
    return net


def _with_mixed() -> Net:
    net = of(_mixed)()
    net.linear.bfloat16()
    return net


def _with_twice() -> Net:
    net = Net()
    net.forward = lambda x: net.middle(net.middle(x))  # type: ignore[method-assign]
    return net


def _own_parameter() -> Net:
    net = of(_grouped)()
    net.experts = nn.Parameter(torch.randn(2, 16, 16))
    return net


# Each: how the net is made, and what it is compared with ("" where nothing can be).
CASES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "plain": (Net, FLOAT64),
    "called twice": (_with_twice, FLOAT64),
    "bf16 linear, f32 norm": (_with_mixed, FLOAT64),
    "float32 assert": (of(_asserts), ROUNDING),
    "float32 zeros": (of(_zeros), FLOAT64),
    "lock": (of(_locked, lock=threading.Lock), FLOAT64),
    "generator": (of(_own_rng, generator=torch.Generator), ROUNDING),
    "grouped_mm": (_own_parameter, FLOAT64),
    "lambda over submodules": (_with_chain, FLOAT64),
    "counter and list": (of(_counts, calls=lambda: 0, seen=list), FLOAT64),
    "writes its input, returns None": (of(_writes), FLOAT64),
    "stateful cache": (of(_remembers, cache=lambda: None), FLOAT64),
    "cache in an object of its own": (of(_moves_on, held=Held), FLOAT64),
    "checkpointed": (of(_checkpointed), FLOAT64),
    "checkpointed, reentrant": (of(_checkpointed_otherwise), FLOAT64),
    "python's random": (of(_python_random), FLOAT64),
    "argmax": (lambda: Net(after=lambda x: x.argmax(-1)), FLOAT64),
    "bool": (lambda: Net(after=lambda x: x > 0), FLOAT64),
    "item": (lambda: Net(after=lambda x: x.sum().item()), ROUNDING),
    "numpy": (lambda: Net(after=lambda x: x.detach().numpy()), FLOAT64),
    "complex": (lambda: Net(after=lambda x: torch.complex(x, -x).conj()), FLOAT64),
    "sparse": (lambda: Net(after=lambda x: x.to_sparse()), FLOAT64),
    "nested dict": (lambda: Net(after=lambda x: {"a": [{"b": (x, None, "text")}], "n": 3}), FLOAT64),
    "dataclass": (lambda: Net(after=Wrapped), FLOAT64),
    "object": (lambda: Net(after=Held), FLOAT64),
    "distribution": (lambda: Net(after=lambda x: torch.distributions.Normal(x, x.exp())), FLOAT64),
    "named tuple": (lambda: Net(after=lambda x: Pair(x, {"y": x + 1})), FLOAT64),
    "dropout": (lambda: Net(after=nn.Dropout(0.5)), FLOAT64),
    "functional dropout": (lambda: Net(after=lambda x: F.dropout(x, 0.5, True)), FLOAT64),
    "batch norm": (lambda: Net(after=nn.BatchNorm1d(16)), FLOAT64),
    "float64": (lambda: Net().double(), ROUNDING),
    "bfloat16": (lambda: Net().bfloat16(), FLOAT64),
    "a reference of about 0": (lambda: Net(after=lambda x: (x + 1e4) - 1e4 - x), FLOAT64),
    "exactly 0": (lambda: Net(after=lambda x: x * 0), FLOAT64),
    "some NaN": (lambda: Net(after=lambda x: x.masked_fill(x < 0.1, float("nan"))), FLOAT64),
    "all NaN": (lambda: Net(after=lambda x: x * float("nan")), FLOAT64),
    "some infinite": (lambda: Net(after=lambda x: x.masked_fill(x < 0.1, float("-inf"))), FLOAT64),
    "empty": (lambda: Net(after=lambda x: x[:0]), ""),
    "None": (lambda: Net(after=lambda x: None), ""),
    "text": (lambda: Net(after=lambda x: "text"), ""),
    "huge beside tiny": (lambda: Net(after=lambda x: (x * 1e-12, torch.full((9,), 1e12))), FLOAT64),
}  # fmt: skip


def compared(make: Callable[[], nn.Module], *, train: bool = False, grad: bool = False, **more: Any) -> Agreement:
    torch.manual_seed(0)
    net = make()
    net.train(train)
    x = torch.randn(8, 16).to(next(net.parameters()).dtype)
    with torch.set_grad_enabled(grad):
        roots = find_roots(lambda: net(x.clone()))
        return compare(roots.samples, **more)


@pytest.mark.parametrize("name", list(CASES))
def test_each_is_compared_or_says_why_not(name: str) -> None:
    make, against = CASES[name]
    found = compared(make)
    assert found.against == against, found
    assert found.agrees == bool(against), found
    assert against or found.note.startswith("not compared: "), found


@pytest.mark.parametrize("name", [n for n, (_, against) in CASES.items() if against and n not in ("item", "numpy")])
def test_each_as_it_trains(name: str) -> None:
    found = compared(CASES[name][0], train=True, grad=True)
    assert found.agrees and found.against, found


@pytest.mark.parametrize("forward", [_checkpointed, _checkpointed_otherwise])
def test_what_a_checkpoint_computes_again_is_moved_too(forward: Callable[..., Tensor]) -> None:
    """Torch counts what is saved at first and again, and refuses a backward where that differs."""
    from torch.utils import checkpoint as torchs

    net, x, before = of(forward)(), torch.randn(8, 16), vars(torchs).copy()
    found = list[Tensor]()
    for mode in (contextlib.nullcontext(), PerturbedRounding(0)):
        net.zero_grad()
        with mode:
            loss = net(x).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
        assert net.linear.weight.grad is not None
        found.append(net.linear.weight.grad)
    plain, moved = found
    assert not torch.equal(moved, plain)
    torch.testing.assert_close(moved, plain, rtol=1e-3, atol=1e-3)
    assert vars(torchs) == before


def wrong(kind: str) -> Callable[[nn.Module], contextlib.AbstractContextManager[None]]:
    """A swap whose LayerNorm is wrong."""

    @contextlib.contextmanager
    def broken(module: nn.Module) -> Iterator[None]:
        norm = next(m for m in module.modules() if isinstance(m, nn.LayerNorm))
        original = norm.forward
        changes = {
            "zeros": lambda x: original(x) * 0,
            "a percent": lambda x: original(x) * 1.01 + 0.01,
            "stale": lambda x: torch.full_like(original(x), 0.7),
            "another dtype": lambda x: original(x).double(),
            "one NaN": lambda x: original(x).masked_fill(torch.arange(16) == 3, float("nan")),
        }
        norm.forward = changes[kind]  # type: ignore[method-assign]
        try:
            yield None
        finally:
            norm.__dict__.pop("forward", None)

    return broken


UNSEEN = ("exactly 0", "all NaN")  # whatever the modules in it do, these are the outputs


@pytest.mark.parametrize("kind", ["zeros", "a percent", "stale", "one NaN"])
@pytest.mark.parametrize("name", list(CASES))
def test_a_wrong_swap_never_agrees(name: str, kind: str) -> None:
    if name in UNSEEN or (kind == "a percent" and name in ("argmax", "bool")):
        return
    found = compared(CASES[name][0], changed=wrong(kind))
    assert not found.agrees, found


def test_what_was_run_is_as_it_was() -> None:
    """Parameters are the same storage; buffers, modes, attributes, random numbers and default dtype are untouched."""
    torch.manual_seed(0)
    net = of(_counts, calls=lambda: 0, seen=list)()
    net.bn = nn.BatchNorm1d(16)
    net.norm.eval()
    x = torch.randn(8, 16, requires_grad=True) * 2  # not a leaf
    roots = find_roots(lambda: net(x))
    addresses = [p.data_ptr() for p in net.parameters()]
    state = {k: v.clone() for k, v in net.state_dict().items()}
    attributes = {n: dict(m.__dict__) for n, m in net.named_modules()}
    modes, seen = [m.training for m in net.modules()], list(net.seen)
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(3), random.random()
    torch.manual_seed(5)
    random.seed(5)
    assert compare(roots.samples).agrees
    assert torch.equal(torch.rand(3), expected[0]) and random.random() == expected[1]
    assert [p.data_ptr() for p in net.parameters()] == addresses
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert [m.training for m in net.modules()] == modes and net.calls == 2
    assert len(net.seen) == len(seen) and all(a is b for a, b in zip(net.seen, seen, strict=True))
    for name, module in net.named_modules():
        assert module.__dict__.keys() == attributes[name].keys()
    assert torch.get_default_dtype() is torch.float32
    assert all(p.dtype is torch.float32 and p.grad is None for p in net.parameters())


def test_gradients_of_what_a_frozen_module_is_given_are_compared() -> None:
    """A picture is trained, its weights are not."""
    net, x = Net().requires_grad_(False), torch.randn(4, 16, requires_grad=True)

    def program() -> None:
        net(x).square().mean().backward()

    samples = find_roots(program).samples
    assert all(sample.training for sample in samples)

    @contextlib.contextmanager
    def wrong(module: nn.Module) -> Iterator[None]:
        whole = module.forward
        module.forward = lambda x: whole(x) + 0.01 * (x - x.detach())  # type: ignore[method-assign]
        yield
        del module.forward

    assert not compare(samples, changed=wrong).agrees
    assert compare(samples, changed=lambda module: contextlib.nullcontext()).agrees


def test_dynamic_int8() -> None:
    torch.manual_seed(0)
    quantize: Any = torch.ao.quantization.quantize_dynamic
    net = nn.Sequential(nn.LayerNorm(16), quantize(nn.Sequential(nn.Linear(16, 16)), {nn.Linear}), nn.GELU())
    with torch.no_grad():
        roots = find_roots(lambda: net(torch.ones(4, 16)))
        found = compare(roots.samples)
    assert found.agrees and found.against == ROUNDING, found


def test_arguments_of_every_kind() -> None:
    """A generator, a tensor that is no leaf, an object with a tensor and a lock in it, one tensor twice."""

    class Holder:
        __slots__ = ("lock", "tensor")

        def __init__(self, tensor: Tensor) -> None:
            self.lock, self.tensor = threading.Lock(), tensor

    class Takes(Net):
        def forward(self, x: Tensor, generator: torch.Generator, holder: Holder, again: Tensor) -> Tensor:  # type: ignore[override]
            assert again is x
            return self.middle(x + torch.rand(x.shape, generator=generator)) + holder.tensor

    torch.manual_seed(0)
    net = Takes()
    x = torch.randn(4, 16, requires_grad=True) * 1.0
    generator = torch.Generator().manual_seed(3)
    samples = find_roots(lambda: net(x, generator, Holder(x), x)).samples
    with torch.no_grad():
        found = compare([dataclasses.replace(s, training=False) for s in samples])
    # float64 draws other numbers from a generator: that is seen, and the original's rounding is the measure
    assert found.agrees and found.against == ROUNDING, found


def test_ties_of_an_argmax_are_said() -> None:
    class Ties(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = self.middle(x)
            return torch.stack([y.sum(-1), y.flip(-1).sum(-1)]).argmax(0)

    torch.manual_seed(0)
    net = Ties()
    x = torch.randn(256, 16)
    with torch.no_grad():
        found = compare(find_roots(lambda: net(x)).samples)
    assert found.agrees or "others" in found.note
    assert "ties" in found.note or found.after == 0


def test_under_autocast_it_is_compared_under_autocast() -> None:
    net = Net()

    def program() -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            net(torch.ones(8, 16))

    (sample, *_) = find_roots(program).samples
    assert sample.autocast == {"cpu": torch.bfloat16}
    found = compare([sample])
    assert found.agrees and found.before > 1e-4, found


def test_a_module_that_raises_by_itself_is_said() -> None:
    class Once(Net):
        def forward(self, x: Tensor) -> Tensor:
            if not allowed:
                raise ValueError("not now")
            return self.middle(x)

    allowed = True
    net = Once()
    samples = find_roots(lambda: net(torch.ones(2, 16))).samples
    allowed = False
    found = compare(samples)
    assert not found.agrees and not found.against and "ValueError: not now" in found.note


def test_a_model_made_in_inference_mode_is_compared_with_float64_and_stays_one() -> None:
    with torch.inference_mode():  # as where the function that makes and keeps the model is first called in it
        model, x = Net().eval(), torch.randn(4, 16)

    @torch.inference_mode()
    def program() -> Tensor:
        return model(x)

    before = program()
    found = compare(find_roots(program).samples)
    assert found.agrees and found.against == FLOAT64 and not found.note
    assert all(p.is_inference() and p.dtype is torch.float32 for p in model.parameters())
    assert torch.equal(program(), before)


@pytest.mark.parametrize("marks", [0, -3], ids=["found by torch", "marked by the program"])
def test_each_run_is_a_step_of_its_own_to_cuda_graphs(monkeypatch: pytest.MonkeyPatch, marks: int) -> None:
    """A forward without a backward would leave them waiting, and what they return next would be overwritten. Who marks
    no steps has them found as before: after a mark alone each run of theirs would be captured anew."""
    from torch._inductor import cudagraph_trees

    said: list[str] = []
    net, x = Net(), torch.randn(8, 16)
    net.register_forward_pre_hook(lambda *given: said.append(f"run {cudagraph_trees.MarkStepBox.mark_step_counter}"))
    manager = types.SimpleNamespace(running_forwards_with_pending_backwards=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cudagraph_trees, "get_manager", lambda device, create_if_none_exists: manager)
    monkeypatch.setattr(cudagraph_trees.MarkStepBox, "mark_step_counter", marks)
    with torch.no_grad():
        samples = find_roots(lambda: net(x)).samples
    said.clear()
    assert compare(samples, changed=lambda module: contextlib.nullcontext()).agrees
    runs = len(said)
    assert runs > 1 and all(one != f"run {marks}" for one in said) and len(set(said)) == runs
    if marks:
        assert cudagraph_trees.MarkStepBox.mark_step_counter == marks - 2 * runs
        assert manager.running_forwards_with_pending_backwards
    else:
        assert cudagraph_trees.MarkStepBox.mark_step_counter == 0
        assert not manager.running_forwards_with_pending_backwards


def test_answers_that_float64_gives_otherwise_are_one_line_of_the_note() -> None:
    def many(self: Net, x: Tensor) -> list[Tensor]:
        turned = 3.0 if x.dtype is torch.float64 else 2.0
        return [turned * at * self.middle(x) for at in range(1, 41)]

    module = of(many)()
    roots = find_roots(lambda: module(torch.randn(4, 16)))
    found = compare(roots.samples)
    assert found.agrees and found.against == ROUNDING, found
    assert found.note.count("float64 gives another") == 1 and "and 43 others of its answers" in found.note, found.note
