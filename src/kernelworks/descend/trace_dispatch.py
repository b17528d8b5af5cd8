"""What the dispatcher would take for a call that a trace holds, and the code of our kernels for its shapes."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernelworks.build import BuildError
from kernelworks.contract import Request, TensorSpec
from kernelworks.descend.device_code import KernelCode
from kernelworks.dispatch.choose import choose
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.signature import by_operator
from kernelworks.profile.calls import Call
from kernelworks.profile.cost.calls import ARGUMENT_ERRORS, op_and_pass, op_request
from kernelworks.profile.cost.operands import Arguments, Operand
from kernelworks.profile.foreign.events import Events
from kernelworks.profile.foreign.work import call_of

__all__ = ["OursCompiled", "chosen_for", "our_source", "same_op"]

PACKAGE = Path(__file__).resolve().parents[1]
WAY = "triton"
OWN_GPU, NOT_HERE = "runs on compute capability", "cannot be asked here: it looks at the GPU of the machine it runs on"
ERRORS = (*ARGUMENT_ERRORS, RuntimeError, AssertionError)


def same_op(operator: str) -> str:
    """The op of kernelworks that does what an operator does; "" if there is none."""
    found = op_and_pass(operator)
    if found is not None:
        return found[0].name
    signature = by_operator(operator)
    return signature.op.name if signature is not None else ""


def chosen_for(call: Call, kind: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """The way that the dispatcher takes for such a call on that kind of machine, why, and why not those above it; empty
    if kernelworks has no op for it or the trace does not hold its shapes."""
    found = op_request(call, "cuda") or _request_of_torch(call)
    if found is None:
        return "", "", ()
    try:
        choice = choose(found[0], found[1], None, kind)
    except ERRORS:
        return "", "", ()
    asked = tuple(
        (name, NOT_HERE if reason.startswith(OWN_GPU) else reason)
        for name, reason in choice.declined
        if not reason.startswith("runs on CPU tensors")
    )
    return choice.way, choice.because, asked


def _request_of_torch(call: Call) -> tuple[Op, Request] | None:
    """The request that a call of torch's own operator is, in our op's words."""
    signature = by_operator(call.name)
    if signature is None:
        return None
    try:
        given = [_meta(item) if isinstance(item, Operand) else item for item in Arguments(call).items]
        asked = signature.ours(**dict(zip(signature.names, given, strict=True)))
        if isinstance(asked, str):
            return None
        request = signature.op.request("forward", asked)
    except ERRORS:
        return None
    return signature.op, dataclasses.replace(
        request, args={name: _on_gpu(value) for name, value in request.args.items()}
    )


def _meta(operand: Operand) -> torch.Tensor:
    return torch.empty_strided(operand.shape, operand.stride, dtype=operand.dtype, device="meta")


def _on_gpu(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_on_gpu, value))
    return dataclasses.replace(value, device="cuda") if isinstance(value, TensorSpec) else value


def our_source(operator: str, kernel: str) -> str:
    """The file of our op package that defines a kernel of this name; "" if the operator is no op of ours."""
    found = op_and_pass(operator)
    if found is None:
        return ""
    return _source_of(found[0].name, kernel)


@functools.cache
def _source_of(op: str, kernel: str) -> str:
    source = next((k.source for k in OPS[op].kernels if k.source is not None and k.target == WAY), None)
    if source is None:
        return ""
    folders = (source.parent, PACKAGE / "tile", PACKAGE / "templates")
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if re.search(rf"^def {re.escape(kernel)}\(", path.read_text(encoding="utf-8"), re.M):
                return path.relative_to(PACKAGE).as_posix()
    return ""


def _texts(name: str, cubin: bytes) -> dict[str, str]:
    """IR and PTX that Triton's cache keeps beside this cubin."""
    triton: Any = importlib.import_module("triton")
    for path in Path(triton.knobs.cache.dir).glob(f"*/{name}.cubin"):
        if path.stat().st_size == len(cubin) and path.read_bytes() == cubin:
            kept = {kind: path.with_suffix(f".{kind}") for kind in ("ptx", "ttir")}
            return {kind: other.read_text(encoding="utf-8") for kind, other in kept.items() if other.is_file()}
    return {}


@dataclass
class OursCompiled:
    """Our Triton kernels compiled here, for the capability of the trace's GPU, once for each kind of call."""

    capability: tuple[int, int]
    known: dict[tuple[str, str], list[KernelCode]] = field(default_factory=dict)

    def code_of(self, events: Events, index: int, kernel: str, block: tuple[int, ...]) -> KernelCode | None:
        """Of the kernel of this name that the call launches; None if it is none of ours, or cannot be compiled here.

        Cost: 0.3 to 5 s the first time on a machine."""
        found = op_and_pass(events.text(index)) if index >= 0 else None
        if found is None or self.capability == (0, 0) or importlib.util.find_spec("triton") is None:
            return None
        call = call_of(events, index)
        key = (call.name, repr((call.shapes, call.dtypes)))
        if key not in self.known:
            self.known[key] = self._compiled(call, *found)
        named = [code for code in self.known[key] if code.name == kernel]
        return next((code for code in named if not block or code.threads == block[0]), None)

    def _compiled(self, call: Call, op: Op, pass_: str) -> list[KernelCode]:
        if not any(k.name == WAY and pass_ in k.passes for k in op.kernels):
            return []
        triton = importlib.import_module("kernelworks.build.triton")
        try:
            given = [_meta(item) if isinstance(item, Operand) else item for item in Arguments(call).items]
            given += [None] * (len(op.passes[pass_].names) - len(given))
            with triton.without_gpu(self.capability), triton.compiling() as made:
                op.kernel(WAY).load(pass_)(*given[: len(op.passes[pass_].names)])
        except (*ERRORS, BuildError):
            return []
        return [
            KernelCode(
                name=one.name, threads=one.threads, shared_bytes=one.shared_bytes, cubin=one.cubin,
                where="compiled here", **_texts(one.name, one.cubin),
            )
            for one in made
        ]  # fmt: skip
