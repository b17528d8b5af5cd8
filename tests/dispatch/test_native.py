"""The entry of ops in C++ and the one in Python behave alike."""

from __future__ import annotations

import functools
import gc
import inspect
import pickle
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eligible import KERNELS
from torch import Tensor

import kernelworks as kw
from kernelworks.build import native
from kernelworks.dispatch import plans
from kernelworks.dispatch.op import OPS


@pytest.fixture(params=["C++", "Python"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    module = native.find_extension() if request.param == "C++" else None
    assert (module is not None) == (request.param == "C++"), native.fallback_reason()
    for op in OPS.values():
        op.entry.use_module(module)
    yield request.param
    for op in OPS.values():
        op.entry.use_module(native.find_extension())


def given(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


# op -> ours, torch's, the inputs that have gradients
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Tensor]]] = {
    "gelu": (kw.gelu, F.gelu, given((4, 16))),
    "silu_mul": (kw.silu_mul, lambda a, b: F.silu(a) * b, given((4, 16), (4, 16))),
    "rms_norm": (
        lambda x, w, r: kw.rms_norm(x, w, eps=1e-6, residual=r),
        lambda x, w, r: (F.rms_norm(x + r, (16,), w, 1e-6), x + r), given((4, 16), (16,), (4, 16)),
    ),
    "layer_norm": (
        lambda x, w, b: kw.layer_norm(x, w, b, eps=1e-5), lambda x, w, b: F.layer_norm(x, (16,), w, b),
        given((4, 16), (16,), (16,)),
    ),
    "softmax": (kw.softmax, lambda x: F.softmax(x, -1), given((4, 16))),
    "sum": (lambda x: kw.sum(x, 0), lambda x: torch.sum(x, 0), given((4, 16))),
    "linear": (kw.linear, F.linear, given((4, 16), (8, 16), (8,))),
    "attention": (
        lambda q, k, v: kw.attention(q, k, v, causal="top_left"),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), given(*[(1, 2, 5, 16)] * 3),
    ),
    "embedding": (
        lambda w: kw.embedding(torch.arange(6) % 4, w), lambda w: F.embedding(torch.arange(6) % 4, w), given((8, 16)),
    ),
    "cross_entropy": (
        lambda x: kw.cross_entropy(x, torch.arange(4)), lambda x: F.cross_entropy(x, torch.arange(4)), given((4, 16)),
    ),
}  # fmt: skip


def first(value: Any) -> Tensor:
    return value[0] if isinstance(value, tuple) else value


def wanting(inputs: list[Tensor]) -> list[Tensor]:
    return [x.clone().requires_grad_() for x in inputs]


@pytest.mark.parametrize("name", CALLS)
def test_found_plans_give_what_torch_gives(name: str, way: str) -> None:
    ours, theirs, inputs = CALLS[name]
    for _ in range(3):  # made, found, found
        torch.testing.assert_close(first(ours(*inputs)), first(theirs(*inputs)), rtol=1e-4, atol=1e-5)
        mine, its = wanting(inputs), wanting(inputs)
        got = torch.autograd.grad(first(ours(*mine)).square().sum(), mine)
        want = torch.autograd.grad(first(theirs(*its)).square().sum(), its)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert OPS[name].entry.in_cpp == (way == "C++")
    assert len(OPS[name].plans) >= 2


# op -> the arguments of torch's operator but the kernel, the place of the first gradient's
OPERATORS: dict[str, tuple[Any, ...]] = {
    "softmax": (*given((4, 16)), -1),
    "rms_norm": (*given((4, 16), (16,)), 1e-6, None),
    "attention": (*given(*[(1, 2, 5, 16)] * 3), "top_left", None, None, None, False, None, None),
    "sum": (*given((4, 16)), 0, False),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_torchs_operators_give_what_the_op_gives(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compiled program calls: below autograd by C++ alone once there is a plan, and with gradients."""
    operator, args = getattr(torch.ops.kernelworks, name).default, OPERATORS[name]
    runs = []
    inner = OPS[name].run
    monkeypatch.setattr(OPS[name], "run", lambda *given: runs.append(given) or inner(*given))
    with torch.no_grad():
        want = first(OPS[name].kernel("reference").load("forward")(*args))
        weights = [a.clone().requires_grad_() if isinstance(a, Tensor) else a for a in args]
        for asked in (args, args, weights, tuple(args)):
            got = first(operator(*asked, "reference"))
            torch.testing.assert_close(got, want)
            assert not got.requires_grad
    assert len(runs) == (1 if way == "C++" else 4)
    with pytest.raises(ValueError, match="kernel must be one of"):
        operator(*args, "nobody's")
    leaf = args[0].clone().requires_grad_()
    made = first(operator(leaf, *args[1:], "torch"))
    (gradient,) = torch.autograd.grad(made.square().sum(), leaf, create_graph=True)
    (again,) = torch.autograd.grad(gradient.sum(), leaf)
    assert gradient.shape == again.shape == leaf.shape
    both = torch.func.vmap(lambda x: first(operator(x, *args[1:], None)))(torch.stack([args[0]] * 2))
    torch.testing.assert_close(both[1], want, rtol=1e-4, atol=1e-5)


def test_what_a_backward_reads_of_an_input_alone_its_shape_keeps_no_memory(way: str) -> None:
    x = torch.randn(64, 64, requires_grad=True)
    for _ in range(2):  # made, found
        doubled = x * 2
        gone = weakref.ref(doubled.untyped_storage())
        total = kw.sum(doubled, 0)
        del doubled
        assert gone() is None
        (gradient,) = torch.autograd.grad(total, x, torch.arange(64.0))
        assert torch.equal(gradient, 2 * torch.arange(64.0).expand(64, 64))
    doubled = x * 2
    total = kw.sum(doubled, 0)
    doubled.detach().add_(1)  # nothing of it is read
    total.sum().backward()


def test_nothing_is_recorded_of_an_op_without_gradients(way: str) -> None:
    x, op = torch.randn(4, 16, requires_grad=True), OPS["argmax"]
    for _ in range(2):
        found = kw.argmax(x, 1)
        assert not found.requires_grad and torch.equal(found, x.detach().argmax(1))
    out = torch.empty_like(found)
    assert kw.argmax(x, 1, out=out) is out and torch.equal(out, found)
    made = len(op.plans)
    assert torch.equal(kw.argmax(x.detach(), 1), found) and len(op.plans) == made  # the same plan, gradients or not


def test_a_plan_serves_calls_that_look_alike_and_no_others() -> None:
    op, seen = OPS["gelu"], []

    def counts(x: Tensor, **named: Any) -> bool:
        before = len(op.plans)
        kw.gelu(x, **named)
        return len(op.plans) > before

    x = torch.randn(4, 16)
    for call, fresh in (
        ({}, True), ({}, False), ({"approximate": "tanh"}, True), ({"kernel": "torch"}, True),
        ({"kernel": "torch"}, False),
    ):  # fmt: skip
        seen.append(counts(x, **call) == fresh)
    assert counts(x.bfloat16()) and counts(x[:, ::2]) and counts(x[:3]) and counts(x.t())
    assert not counts(torch.zeros(4, 16))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert counts(x)
    finally:
        torch.set_num_threads(threads)
    assert all(seen)


def test_out_is_written_and_its_version_told() -> None:
    x = torch.randn(4, 16)
    for kernel in (None, "torch", "scalar", *KERNELS):  # which of them runs, if none is asked for, is the machine's
        out, versions = torch.empty(4, 16), [0]
        for _ in range(3):
            assert kw.gelu(x, out=out, kernel=kernel) is out
            torch.testing.assert_close(out, F.gelu(x))
            versions.append(out._version)
        assert versions == sorted(set(versions)), kernel
    rows = torch.randn(6, 16)
    want = kw.softmax(rows[:5].clone())
    for _ in range(2):
        again = rows.clone()
        kw.softmax(again[:5], out=again[1:])  # what was not read yet is not overwritten
        torch.testing.assert_close(again[1:], want)


def test_a_saved_tensor_that_was_written_is_an_error() -> None:
    (x,) = wanting(given((4, 16)))
    for _ in range(2):
        y = x * 1
        loss = kw.gelu(y).sum()
        y.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_what_no_gradient_depends_on_may_be_written() -> None:
    x, weight = torch.randn(4, 16), torch.randn(8, 16, requires_grad=True)
    for _ in range(2):
        frozen = torch.randn(8, 16)
        y = kw.linear(x.clone().requires_grad_(), weight)
        frozen = weight.detach()
        loss = kw.linear(x, weight).sum()  # its gradient reads x alone
        frozen.mul_(1.5)
        loss.backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_freed_graph_is_said_in_torchs_words() -> None:
    (x,) = wanting(given((4, 16)))
    for name in ("gelu", "softmax"):
        loss = CALLS[name][0](x).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


def test_only_what_is_asked_for_is_computed() -> None:
    x, w, b = wanting(given((4, 16), (8, 16), (8,)))
    y = kw.linear(x, w, b)
    flow = torch.randn(4, 8)
    (only,) = torch.autograd.grad(y, [w], flow, retain_graph=True)
    both = torch.autograd.grad(y, [x, w], flow)
    torch.testing.assert_close(only, both[1])
    frozen = kw.linear(x.detach(), w, b)
    torch.testing.assert_close(torch.autograd.grad(frozen, [w], flow)[0], only)


def test_a_gradient_that_does_not_flow() -> None:
    """The sum alone is used, then the output alone; then neither."""
    x, w, r = wanting(given((4, 16), (16,), (4, 16)))
    output, total = kw.rms_norm(x, w, eps=1e-6, residual=r)
    assert not torch.autograd.grad(total.sum(), [w], allow_unused=True, retain_graph=True)[0].any()
    found = torch.autograd.grad(output.sum(), [x, r])
    torch.testing.assert_close(*found)


class Cutting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


def test_no_gradient_arrives_at_all() -> None:
    (x,) = wanting(given((4, 16)))
    Cutting.apply(kw.gelu(x)).sum().backward()
    assert x.grad is None or not x.grad.any()


def test_hooks_and_saved_tensor_hooks() -> None:
    (x,) = wanting(given((4, 16)))
    packed: list[Tensor] = []
    seen: list[Any] = []
    for _ in range(2):
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.numpy(force=True), torch.tensor):
            y = kw.gelu(x)
        assert len(packed) == 1 and packed[0].shape == x.shape
        seen.clear()
        y.register_hook(lambda g: seen.append(g.shape))
        y.grad_fn.register_prehook(lambda g: seen.append(len(g)))
        y.grad_fn.register_hook(lambda a, b: seen.append((len(a), len(b))))
        torch.testing.assert_close(
            torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(F.gelu(x).sum(), x)[0], rtol=1e-4, atol=1e-5
        )
        assert sorted(map(str, seen)) == sorted(["torch.Size([4, 16])", "1", "(1, 1)"])


@pytest.mark.filterwarnings("ignore")
def test_compiled_autograd_takes_a_backward_whole(way: str) -> None:
    from torch._dynamo import compiled_autograd

    if way == "Python":  # autograd.Function, which torch has seen to
        return
    for name in ("linear", "softmax"):
        ours, _, inputs = CALLS[name]
        for _ in range(2):
            leaves, others = wanting(inputs), wanting(inputs)
            loss = ours(*leaves).square().sum()
            with compiled_autograd._enable(torch.compile(backend="eager")):  # type: ignore[no-untyped-call]
                loss.backward()
            ours(*others).square().sum().backward()
            for a, b in zip(leaves, others, strict=True):
                assert torch.equal(a.grad, b.grad)
    torch._dynamo.reset()


def test_anomaly_mode_names_the_forward() -> None:
    (x,) = wanting(given((4, 16)))
    kw.gelu(x).sum().backward()
    with pytest.warns(UserWarning, match="gelu_functionBackward"), torch.autograd.detect_anomaly(check_nan=True):
        y = kw.gelu(x)
        with pytest.raises(RuntimeError, match="returned nan"):
            y.backward(torch.full_like(y, torch.nan))


def test_errors_are_the_callers() -> None:
    x, w = wanting(given((4, 16), (8, 16)))
    for _ in range(2):
        with pytest.raises(ValueError, match="weight must have shape"):
            kw.linear(x, w.detach()[:, :3].requires_grad_())
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: 1 / 0):
            y = kw.gelu(x)
        with pytest.raises(ZeroDivisionError):
            y.sum().backward()


def test_graphs_end_with_what_holds_them() -> None:
    """A node holds its inputs as long as its graph lives, and no longer."""
    x = torch.randn(4, 16, requires_grad=True)
    for _ in range(2):
        inner = x * 1
        gone = weakref.ref(inner)
        y = kw.gelu(inner)
        del inner
        assert gone() is not None
        del y
        gc.collect()
        assert gone() is None


def test_threads_share_ops_and_plans() -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for n in range(1, 30):
            x = torch.randn(n % 7 + 1, 16, generator=generator).requires_grad_()
            y = kw.gelu(x)
            y.sum().backward()
            if not torch.allclose(y, F.gelu(x), rtol=1e-4, atol=1e-5):
                wrong.append((seed, n))
            if n % 10 == 0:
                plans.forget_all()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


X, W = given((4, 16), (16,))

# How a public function may be called: its result and its errors are the same, whoever calls it.
WRITTEN: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "by position": (kw.gelu, (X,), {}),
    "by name": (kw.gelu, (), {"approximate": "tanh", "x": X}),
    "torch's name": (kw.gelu, (), {"input": X}),
    "a kernel": (kw.gelu, (X,), {"kernel": "torch"}),
    "into": (kw.gelu, (X,), {"out": torch.empty(4, 16)}),
    "named in another order": (kw.layer_norm, (X, W, None), {"kernel": "torch", "eps": 1e-5}),
    "torch's shape": (kw.layer_norm, (X, (16,), W), {}),
    "a list": (kw.layer_norm, (X, [16], W, W, 1e-3), {}),
    "an int for a float": (kw.rms_norm, (X, W), {"eps": 1}),
    "no dim": (kw.softmax, (X, None), {}),
    "torch's dtype": (kw.softmax, (X, -1), {"dtype": torch.float64}),
    "NumPy's": (kw.softmax, (X.numpy(),), {}),
    "twice": (kw.gelu, (X,), {"x": X}),
    "too many": (kw.gelu, (X, "tanh", None), {}),
    "too few": (kw.linear, (X,), {}),
    "unknown": (kw.gelu, (X,), {"approximates": "tanh"}),
    "of another type": (kw.gelu, (X,), {"approximate": 3}),
    "no truth value": (kw.rms_norm, (X, W), {"eps": True}),
    "no tensor": (kw.silu_mul, (X, 3), {}),
    "an unknown kernel": (kw.silu_mul, (X, X), {"kernel": "none"}),
}  # fmt: skip


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_public_functions_are_one_for_every_caller(written: str) -> None:
    """The interpreter, which reads a function's code, and C, which calls what the function says."""
    function, args, named = WRITTEN[written]

    def outcome(call: Callable[..., Any]) -> Any:
        try:
            return call()
        except (TypeError, ValueError, RuntimeError) as error:
            return type(error), str(error)

    copied = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__  # the code alone, as Python runs it
    for _ in range(2):
        want, got = (outcome(functools.partial(f, *args, **named)) for f in (copied, function))
        if isinstance(want, tuple):
            assert want == got
        else:
            assert type(want) is type(got) and want.dtype == got.dtype and (want == got).all()
    assert inspect.isfunction(function) and pickle.loads(pickle.dumps(function)) is function


def test_forgotten_plans_are_made_anew() -> None:
    op = OPS["gelu"]
    kw.gelu(torch.randn(4, 16))
    assert len(op.plans) == 1
    plans.forget_all()
    assert len(op.plans) == 0
    kw.gelu(torch.randn(4, 16))
    assert len(op.plans) == 1


def test_torchs_own_function_is_called_and_recorded_as_a_user_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    monkeypatch.setattr("kernelworks.dispatch.tuning_records.verdict", _none)
    plans.forget_all()
    for name, (ours, theirs, inputs) in CALLS.items():
        for _ in range(3):
            mine, its = wanting(inputs), wanting(inputs)
            got, want = first(ours(*mine)), first(theirs(*its))
            assert got.grad_fn.name() == want.grad_fn.name(), name
            assert torch.equal(got, want)
            assert torch.equal(first(ours(*inputs)), want)
            with torch.autocast("cpu", torch.bfloat16):  # an op's dtype is its inputs'
                assert first(ours(*inputs)).dtype == first(ours(*mine)).dtype == torch.float32
    plans.forget_all()


def test_torchs_operators_in_cpp_are_those_of_its_functions(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Bit for bit, for all the contracts' benchmark cases; warnings and errors are torch's, too."""
    if way == "Python":
        return
    for name, op in OPS.items():
        if op._aten is None:
            continue
        for case in op.contract.cases[:12]:
            for dtype in case.dtypes[:2]:
                made = case.make(torch.Generator().manual_seed(0), dtype)
                args = tuple(made[n] for n in op.passes["forward"].names)
                call = op.entry.program(op._aten, args)
                if call is None:
                    # batchmean is torch's kl_div in Python: a sum and a division by the batch, no operator
                    assert name == "attention" or (name, made.get("reduction")) == ("kl_div", "batchmean")
                    continue
                assert same(call(*args), op.as_written(*args)), (name, case.name)
    with pytest.raises(IndexError, match="out of range"):
        OPS["embedding"].entry.program(OPS["embedding"]._aten, (torch.tensor([0]), torch.ones(4, 3)))(
            torch.tensor([9]), torch.ones(4, 3)
        )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return all(map(same, a, b))
    return torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) and a.stride() == b.stride()


def _none(*args: Any) -> Any:
    from kernelworks.dispatch.tuning_records import Verdict

    return Verdict("", "nothing was timed")


def test_a_table_ends_with_what_it_holds() -> None:
    op = OPS["gelu"]
    kw.gelu(torch.randn(4, 16))

    def held() -> None:
        """A plan's own object."""

    gone = weakref.ref(held)
    op.plans.keep("forward", 0, (torch.randn(9, 9), "none"), None, None, plans.Plan(0, held, held), plans.generation())
    del held
    gc.collect()
    assert gone() is not None
    op.entry.use_module(native.find_extension() if op.entry.in_cpp else None)  # another table
    gc.collect()
    assert len(op.plans) == 0 and gone() is None
