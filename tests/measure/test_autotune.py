"""What a program calls is benchmarked once, on its own tensors; its answers are as they were, and calls take what
won."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from op_kernels import ALL_OPS, label
from printed import printed
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from typer.testing import CliRunner

import kernelworks as kw
from kernelworks.build.cpp import TARGETS
from kernelworks.cli import app
from kernelworks.contract.tensors import leaves
from kernelworks.diagnose.explain import explain
from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.mutation import as_tuple
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.plans import forget_all
from kernelworks.dispatch.tuning_records import RaceResult
from kernelworks.machine import environment, machine
from kernelworks.measure.autotune import autotune_cases, candidates, live, session
from kernelworks.measure.clock.duel import Duel
from kernelworks.records import AutotuneResult, Parity, Verification, from_json, to_json
from kernelworks.report.autotune import autotune_result as picture
from kernelworks.report.autotune import text

KERNELS = tuple(name for name in ("avx512_bf16", "avx512", "avx2") if TARGETS[name].needs <= machine().features)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tuning records of its own, every C++ kernel verified, and kernels chosen by tuning records."""
    own = environment.cache_dir
    monkeypatch.setattr(
        environment, "cache_dir", lambda kind: tmp_path / kind if kind == "tuning_records" else own(kind)
    )
    monkeypatch.setattr(tuning_records, "SHIPPED_DIR", tmp_path / "none")
    monkeypatch.setattr(
        certificates, "invalid_reason", lambda op, kernel, kind=None: None if kernel.device == "cpu" else "no GPU"
    )
    monkeypatch.setattr(certificates, "transferable_certificate", lambda op, kernel: None)
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    tuning_records.reread()
    forget_all()
    yield
    tuning_records._remembered.clear()
    tuning_records.reread()
    forget_all()


def outcome(monkeypatch: pytest.MonkeyPatch, *ratios: float, spread: float = 0.01) -> list[float]:
    """Races that end so, one after the other (the last one for all that follow); the list grows with each."""
    ended: list[float] = []

    def duel(ours: Callable[[], Any], torchs: Callable[[], Any], wait: Any, **how: Any) -> Duel:
        ours(), torchs()
        ratio = ratios[min(len(ended), len(ratios) - 1)]
        ended.append(ratio)
        return Duel(RaceResult(10.0, 10.0 * ratio, (ratio, ratio), spread), 6)

    monkeypatch.setattr(candidates, "duel", duel)
    monkeypatch.setattr(candidates, "fastest_variant", lambda variants, *how: variants[0][0])
    return ended


def taken(function: Callable[[], Any]) -> list[str]:
    return [call.taken for call in kw.autotune(function).calls]


def graded(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


# ---------------------------------------------------------------- kernels that nobody has verified


@pytest.mark.parametrize(
    ("ratio", "tried_wrong", "refused", "verifications", "taken_of"),
    [
        (1.5, 0, 0, 1, "ours"),  # it won: it is verified, and taken
        (0.8, 0, 0, 0, "torch"),  # it lost: a verification would be for nothing
        (1.5, 1, 0, 0, "torch"),  # wrong on the few cases: not benchmarked
        (1.5, 0, 1, 1, "torch"),  # it won, and the verification refuses it
    ],
)
def test_a_kernel_without_a_certificate_is_tried_then_benchmarked_and_verified_if_it_won(
    monkeypatch: pytest.MonkeyPatch, ratio: float, tried_wrong: int, refused: int, verifications: int, taken_of: str
) -> None:
    wrong = Parity("gelu", "", "forward", "c", "float32", 2.0, False, "element 0 is off")
    held: set[tuple[str, str]] = set()
    tried: list[tuple[str, str]] = []
    verified: list[tuple[str, str]] = []

    def verification(op: str, kernel: str, *failures: Parity, certified: bool = False) -> Verification:
        return Verification(op, kernel, "here", 9, 0.5, "", failures, 0, 0, {}, 0.1, certified)

    def confirm(kernels: list[tuple[str, str]], progress: Any, most_s: float) -> list[Verification]:
        tried.extend(kernels)
        return [verification(op, kernel, *[wrong] * tried_wrong) for op, kernel in kernels]

    def verify_missing(kernels: list[tuple[str, str]], progress: Any) -> list[Verification]:
        verified.extend(kernels)
        held.update(() if refused else kernels)
        return [verification(op, kernel, *[wrong] * refused, certified=not refused) for op, kernel in kernels]

    monkeypatch.setattr(
        certificates, "invalid_reason", lambda op, kernel, kind=None: None if (op, kernel.name) in held else "no"
    )
    monkeypatch.setattr(session, "confirm", confirm)
    monkeypatch.setattr(session, "verify_missing", verify_missing)
    ended, x, y = outcome(monkeypatch, ratio), torch.randn(4, 64), torch.randn(5, 64)
    lines = kw.autotune(lambda: (kw.gelu(x), kw.gelu(y))).calls
    assert len(tried) == 1 and tried[0][1] in KERNELS  # the first listed alone, once for all calls
    assert len(ended) == (0 if tried_wrong else 2)
    assert (verified, len(verified)) == (tried[: len(verified)], verifications)
    expected = tried[0][1] if taken_of == "ours" else "torch"
    assert [line.taken for line in lines] == [expected] * 2
    assert explain("gelu", x).kernel == expected
    if refused:
        assert "it failed verification" in lines[0].why


# ---------------------------------------------------------------- what is benchmarked, and what is taken


def test_a_forward_is_benchmarked_and_the_winner_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, x = outcome(monkeypatch, 1.5), torch.randn(4, 64)
    record = kw.autotune(lambda: kw.gelu(x))
    assert ended == [1.5]
    (call,) = record.calls
    assert (call.op, call.what, call.ratio, call.rounds) == ("gelu", "forward", 1.5, 6)
    assert call.taken == call.kernel
    assert call.kernel in KERNELS
    assert explain("gelu", x).kernel == call.kernel
    assert "1.50x" in explain("gelu", x).because


@pytest.mark.parametrize("ratio", [0.3, 1.0, 1.02])
def test_near_parity_and_below_torch_is_taken(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    outcome(monkeypatch, ratio)
    x = torch.randn(4, 64)
    assert taken(lambda: kw.gelu(x)) == ["torch"]
    assert explain("gelu", x).kernel == "torch"


def test_gradients_are_benchmarked_too_and_both_must_be_won(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, x = outcome(monkeypatch, 1.5, 1.2, 1.01), graded(4, 64)
    record = kw.autotune(lambda: kw.gelu(x).sum().backward())
    assert [(c.what, c.taken == "torch") for c in record.calls] == [
        ("forward", False), ("forward + backward", True), ("backward", True)
    ]  # fmt: skip
    assert ended == [1.5, 1.2, 1.01]
    assert type(kw.gelu(x).grad_fn).__name__ == "GeluBackward0"


def test_gradients_that_were_won_run_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome(monkeypatch, 1.5)
    x = graded(4, 64)
    assert all(c.taken != "torch" for c in kw.autotune(lambda: kw.gelu(x).sum().backward()).calls)
    assert type(kw.gelu(x).grad_fn).__name__ != "GeluBackward0"


def test_noise_is_torchs_and_is_benchmarked_again_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome(monkeypatch, 2.0, spread=0.3)
    x = torch.randn(4, 64)
    (call,) = kw.autotune(lambda: kw.gelu(x)).calls
    assert call.taken == "torch"
    assert "too noisy" in call.why
    ended = outcome(monkeypatch, 2.0)
    assert taken(lambda: kw.gelu(x)) != ["torch"]
    assert len(ended) == 1


def test_one_kind_of_call_is_benchmarked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, x = outcome(monkeypatch, 1.5), torch.randn(4, 64)
    kw.autotune(lambda: [kw.gelu(x) for _ in range(20)])
    assert len(ended) == 1


def test_a_loop_of_lengths_is_benchmarked_if_it_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = outcome(monkeypatch, 1.5)
    record = kw.autotune(lambda: [kw.gelu(torch.ones(4, n)) for n in range(64, 128)])
    assert len(ended) == 4
    assert len(record.calls) == 64
    assert all(call.taken != "torch" for call in record.calls)
    ended = outcome(monkeypatch, 1.5, 1.0)
    kw.autotune(lambda: [kw.gelu(torch.ones(4, n)) for n in range(512, 1024)])
    assert len(ended) == 12


def test_a_kernel_asked_for_by_name_is_not_benchmarked(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = outcome(monkeypatch, 1.5)
    kw.autotune(lambda: kw.gelu(torch.ones(3), kernel="reference"))
    assert not ended


def test_without_a_verified_kernel_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, kernel, kind=None: "not verified here")
    monkeypatch.setattr(session, "confirm", lambda kernels, progress, most_s: [])  # its worker died
    (call,) = kw.autotune(lambda: kw.gelu(torch.ones(3))).calls
    assert call.taken == "torch"
    assert "not verified here" in call.why


def test_kernels_that_only_want_a_confirmation_are_confirmed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, kernel, kind=None: "verified elsewhere")
    monkeypatch.setattr(certificates, "transferable_certificate", lambda op, kernel: object())
    monkeypatch.setattr(session, "confirm", lambda kernels, progress, most_s: asked.extend(kernels) or [])
    kw.autotune(lambda: [kw.gelu(torch.ones(n)) for n in (3, 4)])
    assert asked == [("gelu", kernel.name) for kernel in OPS["gelu"].kernels if kernel.name in KERNELS]


def test_what_is_expected_is_tried_at_once_before_anything_is_benchmarked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[tuple[str, str]]] = []
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, kernel, kind=None: "never verified")
    monkeypatch.setattr(session, "confirm", lambda kernels, progress, most_s: asked.append(list(kernels)) or [])
    kw.autotune(lambda: kw.gelu(torch.ones(3)), expected=["gelu", "scaled_dot_product_attention", "gelu", "unknown"])
    (first,) = asked  # the call of gelu finds its row tried
    assert [op for op, _ in first] == ["gelu", "attention"]
    assert {kernel for _, kernel in first} <= set(KERNELS)


def test_a_real_race_says_what_each_took() -> None:
    x = torch.randn(64, 512)
    (call,) = kw.autotune(lambda: kw.gelu(x)).calls
    assert call.torch_us > 0 < call.ours_us
    assert call.rounds


def test_ops_are_autotuned_by_their_bench_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome(monkeypatch, 1.5)
    op = OPS["softmax"]
    monkeypatch.setattr(type(op.contract), "bench_cases", property(lambda self: self.cases[2:3]), raising=False)
    record = autotune_cases([op])
    assert {call.op for call in record.calls} == {"softmax"}
    assert {call.what for call in record.calls} == {"forward", "forward + backward", "backward"}


# ---------------------------------------------------------------- the program does not notice


def test_a_programs_state_is_as_it_was() -> None:
    torch.manual_seed(3)
    x, w = graded(16, 64), graded(64)
    before = torch.get_rng_state()
    versions = x._version, w._version
    hooked: list[Tensor] = []
    x.register_hook(hooked.append)

    def program() -> Tensor:
        y: Tensor = kw.rms_norm(x, w, eps=1e-6)
        assert x.grad is None
        return y

    kw.autotune(program, again=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert (x._version, w._version) == versions
    assert x.grad is None is w.grad
    assert not hooked
    assert torch.is_grad_enabled()


def test_answers_and_gradients_are_those_of_the_call_itself() -> None:
    x = graded(16, 64)
    found: list[Tensor] = []

    def program() -> None:
        y = kw.gelu(x)
        y.sum().backward()
        found.append(y.detach())

    kw.autotune(program)
    assert torch.allclose(found[0], torch.nn.functional.gelu(x), atol=1e-6)
    twin = x.detach().clone().requires_grad_()
    torch.nn.functional.gelu(twin).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, twin.grad, atol=1e-6)  # once, not once a race


def test_an_op_that_writes_steps_once() -> None:
    tensors = [torch.randn(32) for _ in range(4)]
    tensors[3] = tensors[3].abs()
    twins = [t.clone() for t in tensors]

    def step(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
        kw.adamw_([p], [g], [m], [v], step=1, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.01)

    kw.autotune(step, *tensors)
    step(*twins)
    for got, want in zip(tensors, twins, strict=True):
        assert torch.allclose(got, want, atol=1e-6)


def test_hooks_on_saved_tensors_see_the_call_alone() -> None:
    x, packed = graded(8, 64), []

    def pack(t: Tensor) -> Tensor:
        packed.append(t)
        return t

    def program() -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            kw.softmax(x, dim=-1).sum().backward()

    program()
    once = len(packed)
    packed.clear()
    kw.autotune(program)
    assert len(packed) == once


def test_a_checkpointed_program_is_autotuned() -> None:
    x = graded(8, 64)
    record = kw.autotune(lambda: checkpoint(lambda t: kw.gelu(t) * 2, x, use_reentrant=False).sum().backward())
    assert "backward" in [call.what for call in record.calls]
    assert x.grad is not None


@pytest.mark.parametrize(
    "inside",
    [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu"), torch.enable_grad],
    ids=["inference_mode", "no_grad", "autocast", "enable_grad"],
)
def test_modes_are_as_they_were(inside: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    outcome(monkeypatch, 1.5)
    with inside():
        before = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        record = kw.autotune(lambda: kw.gelu(torch.randn(8, 64)))
        assert len(record.calls) == 1
        assert before == (
            torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        )  # fmt: skip


def test_what_watches_operators_sees_no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = outcome(monkeypatch, 1.5)

    def program() -> None:
        with torch.profiler.profile():
            kw.gelu(torch.ones(8))

    kw.autotune(program)
    kw.autotune(lambda: torch.func.vmap(kw.gelu)(torch.ones(3, 8)))
    assert not ended


def test_a_program_that_raises_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome(monkeypatch, 1.5)
    x = torch.randn(4, 64)

    def program() -> None:
        kw.gelu(x)
        raise ValueError("of the program's own")

    with pytest.raises(ValueError, match="own"):
        kw.autotune(program)
    assert explain("gelu", x).kernel in KERNELS


def test_a_call_that_torch_refuses_raises_as_ever() -> None:
    with pytest.raises(IndexError):
        kw.autotune(lambda: kw.embedding(torch.tensor([7]), torch.ones(3, 4)))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_race_without_memory_is_torchs(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def duel(*args: Any, **named: Any) -> Duel:
        raise error

    monkeypatch.setattr(candidates, "duel", duel)
    (call,) = kw.autotune(lambda: kw.gelu(torch.ones(4, 64))).calls
    assert call.taken == "torch"
    assert "not enough memory" in call.why


# ---------------------------------------------------------------- records and files


def test_a_record_says_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome(monkeypatch, 1.5, 0.8, 0.7)
    record = kw.autotune(lambda: kw.gelu(graded(4, 64)))
    assert from_json(AutotuneResult, to_json(record)) == record
    assert "takes torch" in text(record) == str(record)
    assert "forward + backward" in printed(picture(record), 160)
    assert "nothing to autotune" in str(kw.autotune(lambda: None))


def test_where_nothing_can_be_written_choices_hold_for_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcome(monkeypatch, 1.5)
    (tmp_path / "tuning_records").write_text("a file where the folder should be")
    x = torch.randn(4, 64)
    record = kw.autotune(lambda: kw.gelu(x))
    assert not record.kept
    assert len([note for note in record.notes if "this process alone" in note]) == 1
    assert explain("gelu", x).kernel in KERNELS


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("program", "arguments", "code", "out", "err"),
    [
        ("import torch, kernelworks as kw\nkw.gelu(torch.ones(2, 8))", (), 0, "gelu", ""),
        ("import torch, kernelworks as kw\nkw.gelu(torch.ones(2, 8))", ("--json",), 0, '"calls"', ""),
        ("print('nothing of ours')", (), 0, "nothing to autotune", ""),
        ("raise ValueError('of the program')", (), 1, "", "only what it had called until then is autotuned"),
        (None, (), 2, "", "no file"),
    ],
)
def test_a_program_is_autotuned_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, arguments: tuple[str, ...], code: int,
    out: str, err: str,
) -> None:  # fmt: skip
    outcome(monkeypatch, 1.5)
    file = tmp_path / "program.py"
    if program is not None:
        file.write_text(program)
    result = CliRunner().invoke(app, ["autotune", str(file), *arguments])
    assert result.exit_code == code, result.output
    assert out in result.stdout
    assert err in result.stderr


def test_ops_are_named_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["autotune", "nope"])
    assert result.exit_code == 2
    assert "a program is a Python file" in " ".join(result.stderr.split())


# ---------------------------------------------------------------- variants as a user writes them


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_both_variants_compute_the_call_itself(op: Op) -> None:
    case = next(c for c in op.contract.cases if torch.float32 in c.dtypes and c.gradients)
    made = case.make(torch.Generator().manual_seed(0), torch.float32)
    args = tuple(made.get(name) for name in op.passes["forward"].names)
    variants = (
        live.torch_call,
        lambda op, args: live.kernelworks_call(op, args, "reference"),
        lambda op, args: lambda: op.native(*args),
    )
    found = []
    for variant in variants:
        own = live.detach_args(op, args)
        with torch.no_grad():
            result = variant(op, own)()
        written = [own[op.passes["forward"].names.index(n)] for n in op.contract.mutates]
        found.append([t for t in leaves([*as_tuple(result), *written]) if t.numel()])
    for other in found[1:]:
        for got, want in zip(other, found[0], strict=False):
            assert torch.allclose(got, want, atol=1e-4, rtol=1e-4)


def test_torchs_variant_is_torchs_function_and_ours_the_public_one() -> None:
    """A frame of Python more is a tenth of a small call, and would be charged to the wrong variant."""
    x = torch.randn(3, 4)
    torchs = live.torch_call(OPS["softmax"], (x, -1))
    ours = live.kernelworks_call(OPS["softmax"], (x, -1), "avx2")
    called = [
        [cell.cell_contents for cell in variant.__closure__ if callable(cell.cell_contents)]
        for variant in (torchs, ours)
    ]
    assert called[0] == [torch.softmax]
    assert called[1] == [kw.softmax]


def test_a_loss_is_benchmarked_as_backward_starts_it() -> None:
    """Its rows may make the gradient for a 1 with the forward, and would be charged for it twice."""
    logits, target = torch.randn(4, 9, requires_grad=True), torch.arange(4)
    torch.nn.functional.cross_entropy(logits, target).backward()
    (got,) = live.Training(OPS["cross_entropy"], (logits, target, -100, "mean")).forward_backward(None)()
    assert torch.equal(got, logits.grad)
