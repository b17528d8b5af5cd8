"""A torch kernel that declines, of any op: what runs in its place, forward and backward, and what is said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelworks as kw
from kernelworks.contract import Kernel, Request
from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.choose import choose, eligible_ways
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.plans import forget_all
from kernelworks.dispatch.tuning_records import RaceResult, TuningRecord, bucket_of, call_of
from kernelworks.machine import place_of

REASON = "what it makes of it does not fit the memory"
OP = OPS["rope"]  # torch has no one function for it, that calls could go to at once


def declines(request: Request) -> str | None:
    return REASON if next(request.tensors).numel > 1000 else None


@pytest.fixture(autouse=True)
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """The (kernel, pass) that were run of two kernels of ours, and of torch's, which declines large tensors."""
    found: list[tuple[str, str]] = []

    def noting(kernel: Kernel) -> Kernel:
        def load(pass_: str) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                found.append((kernel.name, pass_))
                return kernel.load(pass_)(*args, **named)

            return call

        return dataclasses.replace(kernel, load=load)

    plain, reference = OP.kernels[-2:]
    ours = [
        dataclasses.replace(plain, name=name, source=Path(f"{name}.cpp"), hashed=lambda kernel: "", device="cpu")
        for name in ("one", "two")
    ]
    torchs = dataclasses.replace(plain, guard=declines)
    monkeypatch.setattr(OP, "kernels", tuple(noting(kernel) for kernel in (*ours, torchs, reference)))
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    monkeypatch.setattr(tuning_records, "_folder", lambda place: tmp_path / place)
    monkeypatch.setattr(tuning_records, "SHIPPED_DIR", tmp_path / "none")
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, kernel, kind=None: None)
    tuning_records.reread()
    forget_all()
    yield found
    tuning_records.reread()
    forget_all()


def arguments(length: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(1, 2, length, 8, generator=generator) for _ in range(2))
    tables = (torch.randn(length, 8, generator=generator) for _ in range(2))
    return (q, k, *tables, False)


def test_the_first_kernel_runs_without_a_record(ran: list[tuple[str, str]]) -> None:
    large, small = arguments(100), arguments(10)
    for args, native in ((large, False), (small, True)):
        choice = OP.choice(args, None)
        assert choice.native is native and (REASON in choice.because) is not native
    kw.rope(*small[:4])
    assert not ran
    kw.rope(*large[:4])
    assert ran == [("one", "forward")]
    told = kw.explain(kw.rope, *large[:4])
    assert told.kernel == "one" and REASON in told.because


def test_its_backward_runs_too(ran: list[tuple[str, str]]) -> None:
    args = arguments(100)
    args[0].requires_grad_()
    kw.rope(*args[:4])[0].sum().backward()
    assert ran == [("one", "forward"), ("one", "backward")]
    training = OP.choice(args, None, ("q",))
    assert training.way == "one+one" and training.requested_kernel == "one+one or torch"
    backward = OP.backward_of(OP.request("training", args, ("q",)))
    assert choose(OP, backward).kernel.name == "one"  # also where nobody chose both at once


def test_a_record_for_torch_does_not_count(ran: list[tuple[str, str]]) -> None:
    args = arguments(100)
    request = OP.request("forward", args)
    source_hash, toolchain = tuning_records.sources_of(eligible_ways(OP, request)[0]["one"])
    lost = RaceResult(10.0, 8.0, (0.8, 0.8), 0.01)
    tuning_records.write(
        TuningRecord(
            OP.name, "forward", "one", bucket_of(OP.contract, request), call_of(request), place_of("cpu"),
            request.threads, source_hash, toolchain, tuning_records.torch_version(), lost, None, "2026-11-22",
        )
    )  # fmt: skip
    forget_all()
    assert OP.choice(args, None).kernel.name == "one"


def test_torch_runs_where_no_kernel_of_ours_may(ran: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, kernel, kind=None: "not verified")
    choice = OP.choice(arguments(100), None)
    assert choice.native and REASON in choice.because and "no kernel of ours may run" in choice.because
    assert {name for name, _ in choice.declined} == {"one", "two"}


def test_torch_asked_for_by_name_says_why_not() -> None:
    with pytest.raises(RuntimeError, match=REASON):
        kw.rope(*arguments(100)[:4], kernel="torch")
    kw.rope(*arguments(10)[:4], kernel="torch")
