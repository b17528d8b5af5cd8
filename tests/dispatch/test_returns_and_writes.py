"""An op that returns results and writes to arguments as well: running statistics, the state of a scan."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelworks.build.kernels import python_kernel
from kernelworks.contract import Case, Contract, Cost, Mutant, rounding
from kernelworks.dispatch import torch_library
from kernelworks.dispatch.op import OPS, Op, Pass
from kernelworks.measure.autotune import live
from kernelworks.templates.torch_kernels import python_kernels
from kernelworks.verify.checks import surviving_mutants
from kernelworks.verify.parity import parities

NAME = "test_smoothed"


def _composite(x: Tensor, state: Tensor | None, moving: bool, momentum: float) -> Tensor:
    """x times the state; where the state is moving, x times the momentum, by which the state moves towards x."""
    if not moving:
        return x if state is None else x * state
    if state is not None:
        with torch.no_grad():
            state.mul_(1 - momentum).add_(x.detach(), alpha=momentum)
    return x * momentum


def _reference(x: Tensor, state: Tensor | None, moving: bool, momentum: float) -> tuple[Any, ...]:
    if not moving:
        return x if state is None else x * state, state
    return x * momentum, None if state is None else ((1 - momentum) * state + momentum * x).detach()


def _bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    scale = args["x"].abs() + (0 if args["state"] is None else args["state"].abs())
    moved = [4 * rounding(scale, dtype) if args["moving"] else torch.zeros_like(o) for o in outputs[1:]]
    return (2 * rounding(outputs[0], dtype), *moved)


def _gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    return {name: 2 * rounding(g, dtype) for name, g in gradients.items()}


def _case(name: str, **changed: Any) -> Case:
    def make(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
        x, state = (torch.randn(3, 5, generator=generator).to(dtype) for _ in range(2))
        return {"x": x, "state": state, "moving": True, "momentum": 0.25} | changed

    return Case(name, make, layouts=True)


CONTRACT = Contract(
    name=NAME, family="tests", formula="", source="", outputs=("output", "state"), differentiable=("x",),
    check=lambda **given: None, reference=_reference, bound=_bound, gradient_bound=_gradient_bound,
    cost=lambda request: Cost(1, 0, 1, 1), dims=lambda request: {},
    cases=(_case("moving"), _case("still", moving=False), _case("no state", state=None)), bench_cases=(),
    mutates=("state",),
)  # fmt: skip


def _fake(x: Tensor, *others: Any) -> Tensor:
    return x.new_empty(x.shape)


def _reads_what_it_wrote(x: Tensor, state: Tensor | None, moving: bool, momentum: float, out: Any = None) -> Any:
    made = _composite(x, state, moving, momentum)
    made = made if state is None or not moving else state * momentum
    return made if out is None else out.copy_(made)


def _writes_beside(x: Tensor, state: Tensor | None, moving: bool, momentum: float, out: Any = None) -> Any:
    """Writes one row of the state past its end, in the memory between its rows."""
    made = _composite(x, state, moving, momentum)
    if state is not None and state.stride(0) > state.shape[1]:
        state.as_strided((state.shape[0] - 1, 1), state.stride(), state.storage_offset() + state.shape[1]).fill_(0.0)
    return made if out is None else out.copy_(made)


def _touches_still_state(x: Tensor, state: Tensor | None, moving: bool, momentum: float, out: Any = None) -> Any:
    made = _composite(x, state, moving, momentum)
    if state is not None and not moving:
        state.mul_(1 + 2.0**-7)
    return made if out is None else out.copy_(made)


WRONG = {"reads": _reads_what_it_wrote, "beside": _writes_beside, "touches": _touches_still_state}
MUTANTS = (
    Mutant("state stays", lambda x, s, moving, m: _composite(x, None if moving else s, moving, m), "not written"),
    Mutant("state, whole", lambda *args: (_reference(*args)[0], args[1]), "what is returned with the result is wrong"),
    Mutant("output", lambda *args: _composite(*args) * 1.1, "the output is wrong, the state right"),
)


@pytest.fixture
def op() -> Iterator[Op]:
    arguments = "Tensor x, Tensor{} state, bool moving, float momentum"
    free = {"momentum": lambda m: True}
    forward = Pass(f"{NAME}({arguments.format('(a!)?')}, str? op_kernel=None) -> Tensor", _fake, free=free)
    backward = Pass(
        f"{NAME}_backward(Tensor grad_output, {arguments.format('?')}, bool[] needs, str? op_kernel=None) -> Tensor",
        lambda grad, x, *others: _fake(x), returns=("x",), unread={"state": "moving"}, free=free,
    )  # fmt: skip
    kernels = [python_kernel(name, forward) for name, forward in WRONG.items()]
    plain = python_kernels(CONTRACT, forward, backward, _composite, lambda: made)
    made: Op = Op(
        CONTRACT, [*kernels, *plain], op_package=__file__, forward=forward, backward=backward, composite=_composite,
        mutants=MUTANTS,
    )  # fmt: skip
    yield made
    OPS._made.pop(NAME)
    torch_library._defined.pop(NAME)[0]._destroy()


def _given(moving: bool = True) -> tuple[Tensor, Tensor, bool, float]:
    generator = torch.Generator().manual_seed(1)
    x, state = (torch.randn(4, 6, generator=generator) for _ in range(2))
    return x, state, moving, 0.25


@pytest.mark.parametrize("kernel", ["torch", "reference"])
def test_both_results_are_compared(op: Op, kernel: str) -> None:
    found = [p for case in CONTRACT.cases for dtype in case.dtypes for p in parities(op, kernel, case, dtype)]
    assert len(found) > 30 and {p.pass_ for p in found} == {"forward", "backward"}
    assert not [p.message for p in found if not p.ok]
    assert {"output", "state"} <= {name for p in found for name in p.shares}


@pytest.mark.parametrize(("kernel", "said"), [
    ("reads", "output 0"), ("beside", "memory beside a tensor was written to"), ("touches", "output 1"),
])  # fmt: skip
def test_what_is_wrong_with_either_is_said(op: Op, kernel: str, said: str) -> None:
    found = [p for case in CONTRACT.cases for p in parities(op, kernel, case, torch.float32)]
    assert any(said in p.message for p in found), [p.message for p in found]


def test_mutants_of_either_are_rejected(op: Op) -> None:
    assert surviving_mutants(op) == []
    same = Mutant("right", lambda *args: _composite(*args), "nothing")
    op.mutants = (*op.mutants, same)
    assert surviving_mutants(op) == ["right"]


@pytest.mark.parametrize("through", ["C++", "Python"])
@pytest.mark.parametrize("moving", [True, False])
def test_a_call_that_is_recorded_writes_once_and_bumps_the_version(
    op: Op, moving: bool, through: str, request: pytest.FixtureRequest
) -> None:
    if through == "Python":
        request.getfixturevalue("through_python")
    for _ in range(3):  # the second call finds a plan
        x, state, _, momentum = _given()
        want = state.clone()
        expected = _composite(x, want, moving, momentum)
        x.requires_grad_()
        version = state._version
        output = op(x, state, moving, momentum, kernel="torch")
        torch.testing.assert_close(output.detach(), expected)
        torch.testing.assert_close(state, want)
        assert state._version > version
        (got,) = torch.autograd.grad(output.sum(), x)
        torch.testing.assert_close(got, torch.full_like(x, momentum) if moving else want)
        torch.testing.assert_close(state, want)  # nor does a backward write


@pytest.mark.parametrize("through", ["C++", "Python", "torch.ops"])
def test_what_no_gradient_reads_may_be_written_before_the_backward(
    op: Op, through: str, request: pytest.FixtureRequest
) -> None:
    """A module called twice in a step moves its state twice before the backward of the first call."""
    if through == "Python":
        request.getfixturevalue("through_python")
    operator = getattr(torch.ops.kernelworks, NAME)
    for moving in (True, True, False):
        x, state, _, momentum = _given()
        x.requires_grad_()
        args = (x, state, moving, momentum)
        output = operator(*args, "torch") if through == "torch.ops" else op(*args, kernel="torch")
        state.add_(1.0)
        if moving:
            torch.testing.assert_close(torch.autograd.grad(output.sum(), x)[0], torch.full_like(x, momentum))
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(output.sum(), x)


def test_a_derivative_of_the_derivative_writes_nothing(op: Op) -> None:
    x, state, _, momentum = _given()
    x.requires_grad_()
    output = op(x, state, True, momentum, kernel="torch").square().sum()
    after = state.clone()
    (first,) = torch.autograd.grad(output, x, create_graph=True)
    torch.autograd.grad(first.sum(), x)
    assert torch.equal(state, after)


def test_out_is_written_beside_the_state(op: Op) -> None:
    for _ in range(3):
        x, state, moving, momentum = _given()
        want, version = state.clone(), state._version
        expected, out = _composite(x, want, moving, momentum), torch.full_like(x, torch.nan)
        assert op(x, state, moving, momentum, out=out, kernel="torch") is out
        torch.testing.assert_close((out, state), (expected, want))
        assert state._version > version


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_program_writes_to_the_state(op: Op, backend: str) -> None:
    operator = getattr(torch.ops.kernelworks, NAME)

    def program(x: Tensor, state: Tensor) -> Tensor:
        first = operator(x, state, True, 0.25, "torch")
        return first.sum() + operator(x, state, False, 0.25, "torch").sum()

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend=backend)
    for _ in range(2):
        found = []
        for run in (compiled, program):
            x, state, *_ = _given()
            x.requires_grad_()
            loss = run(x, state)
            found.append((loss, state, *torch.autograd.grad(loss, x)))
        torch.testing.assert_close(found[0], found[1])
    torch._dynamo.reset()


def test_torch_checks_the_operator(op: Op) -> None:
    operator = getattr(torch.ops.kernelworks, NAME).default
    for moving in (True, False):
        x, state, _, momentum = _given()
        tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        result = torch.library.opcheck(
            operator, (x.requires_grad_(), state, moving, momentum, "torch"), test_utils=tests
        )
        assert set(result.values()) == {"SUCCESS"}


def test_each_measured_call_has_a_state_of_its_own(op: Op) -> None:
    args = _given()
    before = args[1].clone()
    own = live.detach_args(op, args)
    op(*own, kernel="torch")
    assert torch.equal(args[1], before) and not torch.equal(own[1], before)


def test_looking_for_a_call_and_a_race_of_training_leave_the_state(op: Op) -> None:
    x, state, moving, momentum = _given()
    before = state.clone()
    call = live.torch_call(op, (x, state, moving, momentum))
    assert torch.equal(state, before)
    call()
    assert not torch.equal(state, before)
    state.copy_(before)
    training = live.Training(op, (x.requires_grad_(), state, moving, momentum))
    for way in (None, "torch"):
        training.forward_backward(way)()
    assert torch.equal(state, before)


def test_two_threads_with_states_of_their_own(op: Op) -> None:
    x, state, moving, momentum = _given()
    want = state.clone()
    for _ in range(20):
        _composite(x, want, moving, momentum)
    states = [state.clone() for _ in range(2)]

    def work(own: Tensor) -> None:
        for _ in range(20):
            op(x, own, moving, momentum, kernel="torch")

    workers = [threading.Thread(target=work, args=(own,)) for own in states]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for own in states:
        torch.testing.assert_close(own, want)
