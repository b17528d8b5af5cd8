"""What a call takes where tuning records choose: the kernel that a tuning record names, forward and backward, and else
torch's function itself, as a user would have called it. Everything else that speaks of the choice says the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from op_kernels import ALL_OPS
from operators import Seen
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

import kernelworks as kw
from kernelworks.build import BuildError
from kernelworks.contract import Kernel, Request
from kernelworks.contract.tensors import leaves
from kernelworks.diagnose.explain import explain
from kernelworks.diagnose.forecast.races import Races
from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.choose import choose, eligible_ways
from kernelworks.dispatch.hooks import watch_calls
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.plans import forget_all, generation
from kernelworks.dispatch.tuning_records import NO_RECORD, RaceResult, TuningRecord, bucket_of, call_of
from kernelworks.machine import place_of
from kernelworks.nn.expected_kernels import outlook
from kernelworks.profile.call_sites import Survey
from kernelworks.profile.recording import record

KERNEL, OTHER = "one", "two"  # two kernels of ours that gelu has here, whatever the CPU
WIN, LOSS = (1.5, 1.4), (0.8, 0.9)


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The (kernel, pass) of gelu that were run."""
    ran: list[tuple[str, str]] = []

    def noting(kernel: Kernel) -> Kernel:
        def load(pass_: str) -> Callable[..., Any]:
            run = kernel.load(pass_)

            def call(*args: Any, **named: Any) -> Any:
                ran.append((kernel.name, pass_))
                return run(*args, **named)

            return call

        return dataclasses.replace(kernel, load=load)

    plain, reference = OPS["gelu"].kernels[-2:]
    ours = [
        dataclasses.replace(
            plain, name=name, source=Path(f"{name}.cpp"), hashed=lambda kernel, name=name: name, device="cpu"
        )
        for name in (KERNEL, OTHER)
    ]
    monkeypatch.setattr(OPS["gelu"], "kernels", tuple(noting(kernel) for kernel in (*ours, plain, reference)))
    return ran


@pytest.fixture(autouse=True)
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tuning records choose, of which there are none yet; every kernel of ours passes for verified."""
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    monkeypatch.setattr(tuning_records, "_folder", lambda place: tmp_path / place)
    monkeypatch.setattr(tuning_records, "SHIPPED_DIR", tmp_path / "none")
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, kernel, kind=None: None)
    tuning_records.reread()
    forget_all()
    yield
    tuning_records.reread()
    forget_all()


def put(
    op: Op, args: tuple[Any, ...], way: str, halves: tuple[float, float] = WIN, wanted: tuple[str, ...] = ()
) -> None:
    """A tuning record of a call, on record from now on."""
    request = op.request("training" if wanted else "forward", args, wanted)
    source_hash, toolchain = tuning_records.sources_of(eligible_ways(op, request)[0][way])
    benchmarked = RaceResult(10.0, 10.0 * min(halves), halves, 0.01)
    tuning_records.write(
        TuningRecord(
            op.name, request.pass_, way, bucket_of(op.contract, request), call_of(request), place_of("cpu"),
            request.threads, source_hash, toolchain, tuning_records.torch_version(), benchmarked,
            benchmarked if wanted else None, "2026-11-22",
        )
    )  # fmt: skip
    forget_all()


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


IDS, Q = torch.tensor([1, 0, 3]), (1, 4, 8, 16)
# Ours, what a user would have called, and the tensors.
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Tensor, ...]]] = {
    "gelu": (lambda a: kw.gelu(a), lambda a: F.gelu(a), (x(4, 64),)),
    "softmax": (lambda a: kw.softmax(a, dim=-1), lambda a: F.softmax(a, -1), (x(4, 64),)),
    "silu_mul": (lambda a, b: kw.silu_mul(a, b), lambda a, b: F.silu(a) * b, (x(4, 64), x(4, 64))),
    "rms_norm": (
        lambda a, w: kw.rms_norm(a, w, eps=1e-6), lambda a, w: F.rms_norm(a, (64,), w, 1e-6), (x(4, 64), x(64)),
    ),
    "layer_norm": (
        lambda a, w, b: kw.layer_norm(a, w, b, eps=1e-5), lambda a, w, b: F.layer_norm(a, (64,), w, b, 1e-5),
        (x(4, 64), x(64), x(64)),
    ),
    "linear": (lambda a, w, b: kw.linear(a, w, b), lambda a, w, b: F.linear(a, w, b), (x(4, 64), x(16, 64), x(16))),
    "attention": (
        lambda q, k, v: kw.attention(q, k, v, causal="top_left"),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=False),
        (x(*Q), x(*Q), x(*Q)),
    ),
    "cross_entropy": (
        lambda a: kw.cross_entropy(a, IDS[:3]), lambda a: F.cross_entropy(a, IDS[:3]), (x(3, 64),),
    ),
    "embedding": (lambda w: kw.embedding(IDS, w), lambda w: F.embedding(IDS, w), (x(8, 16),)),
}  # fmt: skip


def _operators(call: Callable[..., Any], tensors: tuple[Tensor, ...], *, gradients: bool) -> list[str]:
    args = [t.detach().clone().requires_grad_(gradients) for t in tensors]
    with Seen() as seen:
        result = call(*args)
        if gradients:
            result.backward(torch.ones_like(result))
    return seen.names


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("name", CALLS)
def test_without_a_tuning_record_exactly_torchs_function_runs(name: str, gradients: bool) -> None:
    ours, torchs, tensors = CALLS[name]
    for _ in range(2):  # decided by the first
        assert _operators(ours, tensors, gradients=gradients) == _operators(torchs, tensors, gradients=gradients)


@pytest.mark.parametrize("name", CALLS)
def test_its_own_nodes_of_autograd_record_it(name: str) -> None:
    ours, torchs, tensors = CALLS[name]
    args = [t.detach().clone().requires_grad_() for t in tensors]
    for _ in range(3):  # decided by the first, found in C by the third
        mine, theirs = ours(*args), torchs(*args)
        assert mine.grad_fn.name() == theirs.grad_fn.name()
        grad = torch.randn_like(mine)
        for a, b in zip(torch.autograd.grad(mine, args, grad), torch.autograd.grad(theirs, args, grad), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("policy", ["timed", "listed"])
def test_a_policy_is_one_of_two(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CHOOSE", policy)
    request = OPS["gelu"].request("forward", (x(4, 64), "none"))
    assert choose(OPS["gelu"], request).native == (policy == "timed")
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "best")
    with pytest.raises(ValueError, match="KERNELWORKS_CHOOSE must be timed or listed, got 'best'"):
        choose(OPS["gelu"], request)


# ---------------------------------------------------------------- a tuning record names a kernel


@pytest.mark.parametrize(
    ("halves", "ran"), [(WIN, [(KERNEL, "forward")]), (LOSS, []), ((1.5, 1.0), [])], ids=["won", "lost", "one half"]
)
def test_a_forward_takes_the_kernel_that_won(
    halves: tuple[float, float], ran: list[tuple[str, str]], loaded: list[tuple[str, str]]
) -> None:
    a = x(4, 64)
    put(OPS["gelu"], (a, "none"), KERNEL, halves)
    for turn in range(3):
        kw.gelu(a)
        assert loaded == ran * (turn + 1)


@pytest.mark.parametrize("back", [KERNEL, OTHER])
def test_a_backward_takes_the_kernel_that_the_tuning_record_of_both_named(
    back: str, loaded: list[tuple[str, str]]
) -> None:
    a = x(4, 64).requires_grad_()
    put(OPS["gelu"], (a, "none"), f"{KERNEL}+{back}", wanted=("x",))
    for turn in range(3):
        kw.gelu(a).sum().backward()
        assert loaded == [(KERNEL, "forward"), (back, "backward")] * (turn + 1)
    loaded.clear()
    with torch.no_grad():
        kw.gelu(a)
    assert loaded == [], "the forward alone has no tuning record"


def test_training_and_inference_are_chosen_apart(loaded: list[tuple[str, str]]) -> None:
    a = x(4, 64).requires_grad_()
    put(OPS["gelu"], (a, "none"), KERNEL)
    assert kw.gelu(a).grad_fn.name() == "GeluBackward0" and not loaded
    kw.gelu(a.detach())
    assert loaded == [(KERNEL, "forward")]


def test_whoever_watches_sees_the_same_choice(loaded: list[tuple[str, str]]) -> None:
    a = x(4, 64).requires_grad_()
    put(OPS["gelu"], (a, "none"), f"{KERNEL}+{KERNEL}", wanted=("x",))
    assert _operators(kw.gelu, (a,), gradients=True).count("kernelworks.gelu.default") == 1
    compiled = torch.compile(lambda v: kw.gelu(v * 1.0), fullgraph=True, backend="aot_eager")
    compiled(a).sum().backward()
    assert loaded == [(KERNEL, "forward"), (KERNEL, "backward")] * 2


def test_a_compiler_gets_torchs_operators_where_torch_is_taken(loaded: list[tuple[str, str]]) -> None:
    compiled = torch.compile(lambda v: kw.gelu(v * 1.0), fullgraph=True, backend="aot_eager", dynamic=True)
    a = x(4, 64)
    put(OPS["gelu"], (a, "none"), KERNEL)
    assert torch.equal(compiled(a), F.gelu(a)), "a size that is not known has no tuning record"
    assert not loaded


def test_a_kernel_that_declines_the_gradients_after_all_leaves_them_to_torchs(
    loaded: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    op, a = OPS["gelu"], x(4, 64).requires_grad_()
    put(op, (a, "none"), f"{KERNEL}+{KERNEL}", wanted=("x",))

    def guard(request: Request) -> str | None:
        return "takes dense ones" if request.pass_ == "backward" and 0 in request.args["grad_output"].stride else None

    picky = tuple(dataclasses.replace(kernel, guard=guard) for kernel in op.kernels[:-2])
    monkeypatch.setattr(op, "kernels", (*picky, *op.kernels[-2:]))
    kw.gelu(a).sum().backward()
    assert loaded == [(KERNEL, "forward"), ("torch", "backward")]
    torch.testing.assert_close(a.grad, torch.autograd.functional.vjp(F.gelu, a.detach(), torch.ones(4, 64))[1])


def test_what_cannot_be_loaded_is_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    op, a = OPS["gelu"], x(4, 64)
    put(op, (a, "none"), KERNEL)

    def fails(pass_: str) -> Any:
        raise BuildError("the assembler is gone", about=f"test {KERNEL}")

    kernels = tuple(dataclasses.replace(r, load=fails) if r.name == KERNEL else r for r in op.kernels)
    monkeypatch.setattr(op, "kernels", kernels)
    with pytest.warns(RuntimeWarning, match="the assembler is gone"):
        assert torch.equal(kw.gelu(a), F.gelu(a))
    assert "the assembler is gone" in dict(choose(op, op.request("forward", (a, "none"))).declined)[KERNEL]
    with pytest.raises(RuntimeError, match="cannot run: the assembler is gone"):
        kw.gelu(a, kernel=KERNEL)
    op.forget()


def test_two_kernels_can_be_asked_for_by_name(loaded: list[tuple[str, str]]) -> None:
    a = x(4, 64).requires_grad_()
    kw.gelu(a, kernel="reference+torch").sum().backward()
    assert loaded == [("reference", "forward"), ("torch", "backward")]
    for wrong in ("torch+none", "torch+torch+torch", "+"):
        with pytest.raises(ValueError, match="kernel must be one of"):
            kw.gelu(a, kernel=wrong).sum().backward()


# ---------------------------------------------------------------- one chooser


@pytest.mark.parametrize("halves", [WIN, LOSS, None], ids=["won", "lost", "no tuning record"])
def test_what_is_said_of_a_call_is_what_it_takes(
    halves: tuple[float, float] | None, loaded: list[tuple[str, str]]
) -> None:
    op, a = OPS["gelu"], x(40, 64)
    if halves:
        put(op, (a, "none"), KERNEL, halves)
    kw.gelu(a)
    taken = loaded[0][0] if loaded else "torch"
    assert taken == (KERNEL if halves is WIN else "torch")
    assert choose(op, op.request("forward", (a, "none"))).kernel.name == taken
    told = explain("gelu", a)
    assert told.kernel == taken
    words = {WIN: f"timed: 1.40x torch, {KERNEL} 10 us against torch's 14", LOSS: "0.80x", None: NO_RECORD}
    assert words[halves] in told.because
    trace = record(lambda: F.gelu(a), survey=Survey())
    found = [Races(0.0, torch.get_num_threads()).of(c).kernel for c in trace.calls if c.name == "aten::gelu"]
    assert found == ([f"kw.gelu: {KERNEL}"] if taken == KERNEL else [""])


def test_what_is_said_of_a_call_with_gradients_is_what_it_takes(loaded: list[tuple[str, str]]) -> None:
    a = x(4, 64).requires_grad_()
    assert (
        explain("gelu", a).kernel == "torch"
        and explain("gelu", a, kernel=f"{KERNEL}+{OTHER}").kernel == f"{KERNEL}+{OTHER}"
    )
    put(OPS["gelu"], (a, "none"), f"{KERNEL}+{OTHER}", wanted=("x",))
    told = explain("gelu", a)
    assert told.kernel == f"{KERNEL}+{OTHER}" and "of the backward" not in told.because and "1.40x" in told.because
    with torch.no_grad():
        assert explain("gelu", a).kernel == "torch"
    kw.gelu(a).sum().backward()
    assert [kernel for kernel, _ in loaded] == told.kernel.split("+")


def test_a_swap_that_would_take_torch_says_why() -> None:
    found = outlook("gelu", torch.float32, "cpu")
    assert not found.has_our_kernel


# ---------------------------------------------------------------- forgetting, watching


def test_one_word_makes_every_choice_void(loaded: list[tuple[str, str]]) -> None:
    op, a = OPS["gelu"], x(4, 64)
    for _ in range(3):
        kw.gelu(a)
    before = generation()
    put(op, (a, "none"), KERNEL)
    assert generation() > before and len(op.plans) == 0
    kw.gelu(a)
    assert loaded == [(KERNEL, "forward")]


def test_what_another_thread_made_void_meanwhile_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    op, a = OPS["gelu"], x(4, 64)
    chosen = choose

    def interrupted(*args: Any, **named: Any) -> Any:
        found = chosen(*args, **named)
        forget_all()
        return found

    with monkeypatch.context() as patch:
        patch.setattr("kernelworks.dispatch.op.choose", interrupted)
        kw.gelu(a)
    assert len(op.plans) == 0
    kw.gelu(a)
    assert len(op.plans) == 1


def test_a_watcher_is_told_of_each_kind_of_call_once() -> None:
    told: list[tuple[str, str, tuple[int, ...], str | None]] = []

    def watcher(op: Op, pass_: str, args: tuple[Any, ...], kernel: str | None) -> None:
        told.append((op.name, pass_, tuple(args[0].shape), kernel))
        op.call(*args, None, "reference")  # its own calls are not told of

    a, b = x(4, 64), x(5, 64).requires_grad_()
    kw.gelu(a)
    with watch_calls(watcher):
        for _ in range(3):
            kw.gelu(a)
            kw.gelu(b).sum().backward()
            kw.softmax(a, dim=-1)
        kw.gelu(x(6, 64), kernel="torch")
    kw.gelu(x(7, 64))
    assert told == [
        ("gelu", "forward", (4, 64), None), ("gelu", "training", (5, 64), None), ("softmax", "forward", (4, 64), None),
        ("gelu", "forward", (6, 64), "torch"),
    ]  # fmt: skip


def test_a_watchers_fault_is_the_callers_and_ends_with_it() -> None:
    def watcher(*args: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), watch_calls(watcher):
        kw.gelu(x(4, 64))
    kw.gelu(x(4, 64))


def test_tensors_without_data_get_torchs_function_too() -> None:
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(1, 2, 8, 16)
    found = kw.attention(q, q, q, causal="bottom_right", window=3)  # whose mask is made of no such tensor
    assert isinstance(found, type(q)) and found.shape == q.shape


def test_a_choice_kept_by_a_compiled_program_ends_with_the_certificate(
    loaded: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = x(4, 64)
    put(OPS["gelu"], (a, "none"), KERNEL)
    made: list[Callable[..., Any]] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        made.append(make_boxed_func(graph.forward))
        return made[-1]

    compiled = torch.compile(lambda v: kw.gelu(v * 1.0), fullgraph=True, backend=aot_autograd(fw_compiler=keep))
    compiled(a)
    monkeypatch.setattr(
        certificates, "invalid_reason", lambda op, kernel, kind=None: "stale" if kernel.name == KERNEL else None
    )
    forget_all()
    # Below Dynamo's guards: a first call may have brought the way in through C++, after which Dynamo compiles anew.
    made[0]([a])
    assert loaded == [(KERNEL, "forward"), ("torch", "forward")]
    assert torch.equal(compiled(a), F.gelu(a)) and loaded.count((KERNEL, "forward")) == 1


@pytest.mark.parametrize("op", [op for op in ALL_OPS if "backward" in op.passes], ids=lambda op: op.name)
def test_the_backward_that_a_training_call_is_settled_with_is_the_one_that_follows(
    op: Op, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "listed")
    monkeypatch.setattr(
        certificates, "invalid_reason", lambda op, kernel, kind=None: "not today" if kernel.source else None
    )
    generator, names = torch.Generator().manual_seed(0), op.passes["forward"].names
    asked: list[Request] = []
    planned = op.make_plan

    def noting(pass_: str, args: tuple[Any, ...], *rest: Any) -> Any:
        asked.append(op.request(pass_, args))
        return planned(pass_, args, *rest)

    monkeypatch.setattr(op, "make_plan", noting)
    for case in op.contract.cases[:6]:
        made = case.make(generator, torch.float32)
        args = [made.get(name) for name in names]
        for name in op.contract.differentiable:
            if made.get(name) is not None:
                args[names.index(name)] = made[name].detach().requires_grad_()
        op.forget()
        asked.clear()
        outputs = [t for t in leaves((op(*args),)) if t.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        found = op.backward_of(op.request("training", tuple(args), op.inputs_requiring_grad(args)))
        assert found.args == asked[-1].args, case.name
