"""Torch's own function takes a call at once until calls go through C++: which calls, and that all else is as it was.

What "as it was" means is asked of the same process with nobody in a hurry (``plans.without_passthrough``).
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from op_kernels import ALL_OPS, label
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks import ops
from kernelworks.build import native
from kernelworks.contract.complex_numbers import is_inexact
from kernelworks.diagnose import explain
from kernelworks.dispatch import choose, entry, plans, tuning_records
from kernelworks.dispatch.hooks import find_first_op, watch_calls
from kernelworks.dispatch.op import OPS, Op

DIRECT = [op for op in ALL_OPS if op.passthrough is not None]
OTHERS = [op for op in ALL_OPS if op.passthrough is None]


@pytest.fixture(autouse=True)
def in_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls as a user's process makes them that has no extension."""
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    for op in ALL_OPS:
        op.entry.use_module(None)
    yield
    for op in ALL_OPS:
        op.entry.use_module(native.find_extension())


def given(op: Op, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Small arguments, no two of them the same tensor."""
    cases = [c for c in op.contract.cases if dtype in c.dtypes]
    made = [c.make(torch.Generator().manual_seed(3), dtype) for c in cases[:40]]

    def size(args: dict[str, Any]) -> tuple[bool, int]:
        tensors = [a for a in args.values() if isinstance(a, Tensor)]
        return any(not t.numel() for t in tensors) or any(t.numel() == 1 for t in tensors), sum(
            t.numel() for t in tensors
        )

    return min((args for args in made if direct(op, args)), key=size)


def direct(op: Op, args: dict[str, Any]) -> bool:
    """Whether torch's function may take such a call, where an op has one."""
    if op.passthrough is None:
        return True
    found = op.passthrough.guarded_tensors({n: args.get(n) for n in op.passes["forward"].names})
    return found is not None and len(found[0]) == sum(isinstance(a, Tensor) for a in args.values())


def call(op: Op, args: dict[str, Any], **more: Any) -> Any:
    function = getattr(ops, op.name)
    code = function.__code__
    places = [n for n in code.co_varnames[: code.co_posonlyargcount] if n in args]  # by name they would be torch's
    return function(*(args[n] for n in places), **{n: a for n, a in args.items() if n not in places}, **more)


def outcome(run: Callable[[], Any]) -> Any:
    """What comes of a call: its results, or its error's class and words."""
    try:
        result = run()
    except Exception as error:
        return type(error), str(error)
    results = result if isinstance(result, tuple) else (result,)
    found = [torch.as_tensor(t).detach() for t in results if t is not None]
    return [torch.nan_to_num(t.to_dense() if t.layout is not torch.strided else t.clone()) for t in found]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) or isinstance(other, tuple):
        return bool(one == other)
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and (a.is_meta or torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


def agree(op: Op, run: Callable[[], Any]) -> None:
    with plans.without_passthrough():
        before = outcome(run)
    for _ in range(3):  # the first call teaches it kinds
        assert same(before, outcome(run)), op.name


def seen_by_python(run: Callable[[], Any]) -> list[tuple[str, str]]:
    """Module and name of each function of Python's that a call enters."""
    found = []

    def seen(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            found.append((frame.f_globals.get("__name__", ""), frame.f_code.co_name))

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


# ---------------------------------------------------------------- the way


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("op", DIRECT, ids=label)
def test_nothing_stands_between_a_public_function_and_torchs(op: Op, trained: bool) -> None:
    args = given(op)
    if trained:
        for name in op.contract.differentiable:
            args[name] = args[name].requires_grad_() if args[name] is not None else None
    run = lambda: call(op, args)  # noqa: E731
    for _ in range(3):
        run()
    path = seen_by_python(run)
    ours = [name for module, name in path if module.startswith("kernelworks")]
    assert ours == [op.name], path
    values = [args.get(name) for name in op.passes["forward"].names]
    through = [name for _, name in seen_by_python(lambda: op.call(*values))]
    assert [n for n in through if n not in ("<lambda>", "is_dynamo_compiling")] == ["call"]


@pytest.mark.parametrize("op", OTHERS, ids=label)
def test_what_is_no_function_of_torchs_is_not_looked_at_twice(op: Op) -> None:
    if op.contract.mutates:
        return
    args = given(op)
    for _ in range(3):
        call(op, args)
    names = {name for module, name in seen_by_python(lambda: call(op, args)) if module.startswith("kernelworks")}
    lists = any(not isinstance(a, (Tensor, int, float, str, bool, type(None))) for a in args.values())
    assert lists or not names & {"_miss", "key_of", "check"}, names


@pytest.mark.parametrize("op", [op for op in DIRECT if "backward" in op.passes], ids=label)
def test_the_graph_is_torchs(op: Op) -> None:
    args = given(op)
    for name in op.contract.differentiable:
        args[name] = args[name].requires_grad_() if args[name] is not None else None
    for _ in range(3):
        result = call(op, args)
    first = result[0] if isinstance(result, tuple) else result
    assert "_function" not in type(first.grad_fn).__name__


def test_shapes_that_came_twice_are_not_looked_at_again() -> None:
    """Nor are they taken for others: heads in groups, a tensor that stands in two places, another size."""
    op = OPS["attention"]
    q, k, v, grouped = (torch.randn(1, heads, 5, 8) for heads in (4, 4, 4, 2))
    calls = [(q, k, v), (q, grouped, grouped.clone()), (q, q, q), (q, k, k), (q, grouped, grouped), (q[:, :, :3], k, v)]
    for first, then in itertools.product(calls, calls):
        for given in (first, first, first, then, then, then):
            with plans.without_passthrough():
                want = op.call(*given, "top_left", None, None, None, False, None, None, None, None)
            for _ in range(4):
                assert torch.equal(ops.attention(*given, causal="top_left"), want)
            ours = [
                n for m, n in seen_by_python(lambda given=given: ops.attention(*given)) if m.startswith("kernelworks")
            ]
            assert ours == ["attention"] or given[2].shape[1] == 2, ours
    for empty in (torch.randn(1, 0, 5, 8), torch.randn(1, 4, 0, 8)):
        agree(op, lambda empty=empty: ops.attention(empty, empty, empty))


# ---------------------------------------------------------------- all else


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_bad_input_is_refused_in_the_same_words(op: Op) -> None:
    for dtype in (torch.float32, torch.float16):
        with contextlib.suppress(ValueError):  # there is none such
            for _ in range(2):
                call(op, given(op, dtype))
    for description, make, kind, text in op.contract.errors:
        with plans.without_passthrough():
            before = outcome(lambda make=make: call(op, make()))
        after = outcome(lambda make=make: call(op, make()))
        if kind is IndexError and isinstance(before, list):
            # torch did not look at the value: parts of its answer are memory that nobody has written
            assert isinstance(after, list), description
            continue
        assert same(before, after), description
        if kind is not IndexError:  # a value, which torch's function refuses in its own words
            assert before[0] is kind and text in before[1]


def other_tensors(t: Tensor) -> Iterator[Any]:
    """What may stand in a tensor's place and mostly must not."""
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.int32):
        if dtype != t.dtype:
            yield t.to(dtype)
    yield t.unsqueeze(0)
    yield t.unsqueeze(-1)
    yield t[..., :1]
    yield t[..., :0]
    if t.dim():
        yield t[0]
        yield t[:1]
        yield t[:0]
        yield t.mT if t.dim() > 1 else t.repeat(2)
        yield t.flatten()[0]
    yield t.clone().requires_grad_(is_inexact(t.dtype))
    yield torch.nn.Parameter(t.clone(), requires_grad=is_inexact(t.dtype))
    yield t.to_sparse() if t.dim() else t
    yield t.to("meta")
    yield torch._neg_view(t) if t.is_floating_point() else t
    yield t.numpy() if t.dtype is not torch.bfloat16 else t
    yield None
    yield 1.0


VALUES = (None, True, False, 0, 1, -1, 2, 5, 1.0, -1.0, 1e-5, float("nan"), "none", "tanh", "sum", "mean", "top_left")


@pytest.mark.parametrize("op", DIRECT, ids=label)
def test_whatever_stands_in_an_arguments_place(op: Op) -> None:
    """Each argument changed, after calls of every kind that are right: also of those that the changes make right."""
    for dtype in (d for d in (torch.float32, torch.bfloat16) if d in op.contract.dtypes):
        right = given(op, dtype)
        changed = [
            right | {name: value}
            for name, now in right.items()
            for value in (list(other_tensors(now)) if isinstance(now, Tensor) else [*VALUES, torch.ones(2)])
        ]
        if len([a for a in right.values() if isinstance(a, Tensor)]) > 1:
            changed += [
                {n: a.to(other) if isinstance(a, Tensor) and a.is_floating_point() else a for n, a in right.items()}
                for other in (torch.float64, torch.float16)
            ]
        for args in itertools.chain([right], changed, [right], changed):
            run = lambda args=args: call(op, args)  # noqa: E731
            with plans.without_passthrough():
                before = outcome(run)
            call(op, right)
            call(op, right)
            after = outcome(run)
            assert same(before, after), (args, before, after)


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Own(Tensor):
    pass


def autocast() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize(
    "world", [autocast, Operators, Functions, torch.no_grad, torch.inference_mode], ids=lambda world: world.__name__
)
@pytest.mark.parametrize("op", DIRECT, ids=label)
def test_whatever_the_thread_is_in(op: Op, world: Callable[[], Any]) -> None:
    args = given(op)
    call(op, args), call(op, args)

    def run() -> Any:
        with world():
            return call(op, args)

    agree(op, run)
    agree(op, lambda: call(op, args))


@pytest.mark.parametrize("op", [op for op in DIRECT if "backward" in op.passes], ids=label)
def test_transforms_subclasses_and_derivatives_of_derivatives(op: Op) -> None:
    args = given(op)
    call(op, args), call(op, args)
    name = op.contract.differentiable[0]

    def of(x: Tensor) -> Tensor:
        result = call(op, args | {name: x})
        return (result[0] if isinstance(result, tuple) else result).sin().sum()

    agree(op, lambda: torch.func.grad(of)(args[name]))
    agree(op, lambda: torch.func.jvp(of, (args[name],), (torch.ones_like(args[name]),)))
    agree(op, lambda: torch.func.grad(lambda x: torch.func.grad(of)(x).sin().sum())(args[name]))
    agree(op, lambda: torch.func.vmap(of)(torch.stack((args[name], args[name] + 1))))
    agree(op, lambda: of(args[name].as_subclass(Own)).as_subclass(Tensor))


@pytest.mark.parametrize("op", DIRECT, ids=label)
def test_a_kernel_and_out_are_as_ever(op: Op) -> None:
    args = given(op)
    call(op, args), call(op, args)
    agree(op, lambda: call(op, args, kernel="reference"))
    agree(op, lambda: call(op, args, kernel="nobody"))
    agree(op, lambda: call(op, args, out=torch.empty(3, 1, 7)))
    made = call(op, args)
    out = (
        tuple(torch.empty_like(t) for t in made)
        if isinstance(made, tuple)
        else torch.empty(made.shape, dtype=made.dtype)
    )
    agree(op, lambda: call(op, args, out=out))


@pytest.mark.parametrize("op", DIRECT, ids=label)
def test_who_is_told_of_calls_is_told(op: Op) -> None:
    args, told = given(op), list[str]()
    call(op, args), call(op, args)
    found = find_first_op(lambda: call(op, args))
    assert found is not None and found[0] is op
    with watch_calls(lambda op, pass_, args, kernel: told.append(op.name)):
        call(op, args)
    assert told == [op.name]
    for _ in range(3):
        call(op, args)
    assert [m for m, _ in seen_by_python(lambda: call(op, args)) if m == "kernelworks.dispatch.op"] == []


def test_compiled_programs_see_the_op() -> None:
    x, graphs = torch.randn(3, 8), list[str]()

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: ops.softmax(x, -1) + 1, backend=backend)
    for _ in range(3):
        ops.softmax(x)
        compiled(x)
    (code,) = graphs  # nothing that calls do makes it compile again
    assert "kernelworks" in code


def test_the_function_is_itself_again_where_calls_go_through_cpp() -> None:
    assert native.find_extension() is not None, native.fallback_reason()
    function = ops.softmax
    before = function.__code__
    OPS["softmax"].entry.use_module(native.find_extension())
    assert function.__code__ is not before
    assert not [name for name in function.__code__.co_names if name.startswith("_at_once_")]
    OPS["softmax"].entry.use_module(None)
    assert function.__code__ is before


# ---------------------------------------------------------------- large calls


def record(call: str, torch_us: float, ours_us: float) -> tuning_records.TuningRecord:
    benchmarked = tuning_records.RaceResult(ours_us, torch_us, (torch_us / ours_us,) * 2, 0.01)
    return tuning_records.TuningRecord("gelu", "forward", "scalar", "", call, "", 1, "", "", "", benchmarked, None, "")


def test_a_kernel_is_worth_the_way_to_it_where_that_is_a_hundredth() -> None:
    names = ("x", "weight")
    call = "x f32[4,4096]; weight f32[4096,1024] by [1,4096]; eps=1"
    assert tuning_records.element_counts(call) == {"x": 16384, "weight": 4194304}
    assert entry._least([record(call, 2000.0, 500.0)], names) == (1, 2097152)
    assert entry._least([record(call, 900.0, 90.0), record(call, 2000.0, 1990.0)], names) is None
    assert tuning_records.element_counts("params 16 tensors cc6ee5797df; eps=1") == {}


def test_what_explains_a_call_knows_which_are_torchs_until_cpp_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    op, small, large = OPS["gelu"], record("x f32[4,8]", 900.0, 90.0), record("x f32[9999,999]", 9000.0, 900.0)
    chosen = [choose.Choice(op.kernel("scalar"), (), "", tuning_record=found) for found in (small, large)]
    monkeypatch.setattr(native, "find_extension", lambda: None)
    assert [op.entry.yields_to_torch(choice, "forward") for choice in chosen] == [True, False]
    said = explain._until_native(op, chosen[0], "forward")
    assert said.native and said.kernel.name == "torch" and "scalar" in said.because
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "listed")
    assert not op.entry.yields_to_torch(chosen[0], "forward")


def test_attention_without_heads_is_no_kernels_that_divides_by_them() -> None:
    op, none = OPS["attention"], torch.empty(2, 0, 3, 64)
    asked = op.request("forward", (none, none, none, None, None, None, None, False, None, None))
    gpu = [kernel for kernel in op.kernels if kernel.name.startswith(("sm90", "triton"))]
    assert len(gpu) > 3 and all(kernel.guard(asked) for kernel in gpu)
