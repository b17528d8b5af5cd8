"""The kernel map of this machine: every op and kernel with its certificate, and its speed if one was measured.

Speeds come from benches that ran on this kind of machine: those kept by ``kernelworks bench`` in the cache folder. A
GPU kernel is shown for this machine's GPU; without one, for the kinds of GPU whose certificates ship, so that a kernel
that was changed without a GPU at hand is named.
"""

from __future__ import annotations

import inspect
import statistics
import typing
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelworks import ops
from kernelworks.build import BuildError
from kernelworks.contract import Kernel
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import Op
from kernelworks.machine import environment, has_gpu, kind_of
from kernelworks.measure.bench import OURS, read_results, save_results
from kernelworks.ops import ops_named
from kernelworks.records import BenchResult, MapKernel, MapOp
from kernelworks.records.base import Records
from kernelworks.templates.description import derived_parts

__all__ = ["keep_benches", "kept_benches", "kernel_map", "source_hashes", "stale_kernels"]

PACKAGE = Path(__file__).resolve().parents[2]
LOSS = 0.97  # Below this share of the best baseline's speed a case is lost; above it is noise.
COPY = "copy"  # This variant is no op but a device copy.


def _bench_path(op: str, device: str) -> Path:
    return environment.cache_dir("bench") / kind_of(device) / f"{op}.json"


def keep_benches(results: Sequence[BenchResult]) -> None:
    """Keeps results for later maps, one file an op and kind of machine, the newest run only. Raises OSError."""
    for op, device in dict.fromkeys((r.op, r.device) for r in results):
        save_results([r for r in results if (r.op, r.device) == (op, device)], _bench_path(op, device))


def kept_benches(op: str, device: str = "cpu") -> list[BenchResult]:
    """The results that were kept for an op on this kind of machine; none if there are none or they do not read."""
    if device == "cuda" and not has_gpu():
        return []
    try:
        return read_results(_bench_path(op, device))
    except (OSError, ValueError):
        return []


def kernel_map(op: str | None = None) -> Records[MapOp]:
    """All ops, or one, which then says what its op template derived. Builds nothing and measures nothing.

    Raises ValueError if there is no such op.
    """
    return Records(_op(found, alone=op is not None) for found in ops_named(op))


def stale_kernels(op: str | None = None) -> list[str]:
    """A line for every kernel without a certificate that holds, on this machine and on every kind whose certificates
    ship: what must be verified again before it is chosen there."""
    lines = []
    for found in ops_named(op):
        for kernel in (r for r in found.kernels if r.source is not None):
            for kind in _kinds(kernel):
                reason = _missing(found.name, kernel, kind)
                if reason:
                    lines.append(f"{found.name}.{kernel.name}: {reason.split('; run')[0]}" + _on(reason, kind))
            if not _kinds(kernel):
                lines.append(f"{found.name}.{kernel.name}: not verified on any GPU")
    return lines


def source_hashes() -> dict[str, str]:
    """The hash of every GPU kernel's source as it lies here, by "op.kernel"."""
    return {
        f"{op.name}.{kernel.name}": kernel.hash()
        for op in ops_named(None)
        for kernel in op.kernels
        if kernel.device == "cuda"
    }


def _on(reason: str, kind: str) -> str:
    return "" if kind in reason else f" (on {kind})"


def _missing(op: str, kernel: Kernel, kind: str) -> str:
    """Why a kernel has no certificate that holds, or nothing. If its compiler is not here, that is why."""
    try:
        return certificates.invalid_reason(op, kernel, kind) or ""
    except BuildError as error:
        return str(error).splitlines()[0]


def _kinds(kernel: Kernel) -> list[str]:
    """The kinds of machine that a kernel is to be certified for: this one, and for a GPU kernel those that ship."""
    if kernel.device != "cuda":
        return [kind_of("cpu")]
    here = [kind_of("cuda")] if has_gpu() else []
    return list(dict.fromkeys([*here, *(k for k in certificates.shipped_kinds() if k.startswith("sm_"))]))


def _op(op: Op, *, alone: bool) -> MapOp:
    contract = op.contract
    benches = {device: [r for r in kept_benches(op.name, device) if not r.gate] for device in ("cpu", "cuda")}
    return MapOp(
        op=op.name,
        family=contract.family,
        formula=contract.formula,
        source=contract.source,
        kernels=tuple(
            _map_kernel(op, kernel, kind, benches["cuda" if kernel.device == "cuda" else "cpu"])
            for kernel in op.kernels
            for kind in _kinds(kernel) or [""]
        ),
        op_package=op.op_package.relative_to(PACKAGE).as_posix()
        if op.op_package.is_relative_to(PACKAGE)
        else str(op.op_package),
        calls=_calls(op),
        derived=tuple(derived_parts(op).items()) if alone else (),
        expressions=tuple(getattr(op.template, "expressions", {}).items()),
    )


def _calls(op: Op) -> tuple[str, ...]:
    function = getattr(ops, op.name, None)
    if function is None:  # one that is no op of the package's own
        return ()
    own = inspect.signature((typing.get_overloads(function) or [function])[0])
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in own.parameters.values()]
    said = f"{op.name}{inspect.Signature(bare)}"
    return (said, op.torch_signature.signature_text()) if op.torch_signature is not None else (said,)


def _map_kernel(op: Op, kernel: Kernel, kind: str, benches: Iterable[BenchResult]) -> MapKernel:
    reason = _missing(op.name, kernel, kind) if kind else "not verified on any GPU"
    certificate, worst = "", None
    by_dtype: dict[str, float] = {}
    if kernel.source is not None and not reason:
        held = next(
            c for c in certificates.find_certificates(op.name, kernel.name, kind) if certificates.is_current(c, kernel)
        )
        certificate, worst = held.date, held.worst
        by_dtype = {dtype: max(outputs.values()) for dtype, outputs in held.worst_by_dtype.items() if outputs}
    elsewhere = kernel.device == "cuda" and not (has_gpu() and kind == kind_of("cuda"))
    shares, ratios, losses, best = [], [], [], Counter[str]()
    for result in () if elsewhere else benches:
        mine = next(
            (a for a in result.variants if a.name == kernel.name or (a.name == OURS and result.chosen == kernel.name)),
            None,
        )
        others = [
            a for a in result.variants if a.name not in (OURS, COPY) and a.name not in {r.name for r in op.kernels}
        ]
        if mine is None or mine.median_us <= 0:
            continue
        shares.append(result.bound_us / mine.median_us)
        if others:
            fastest = min(others, key=lambda a: a.median_us)
            ratios.append(fastest.median_us / mine.median_us)
            best[fastest.name] += 1
            if ratios[-1] < LOSS:
                losses.append(f"{result.case} {result.dtype} ({ratios[-1]:.2f}x {fastest.name})")
    return MapKernel(
        name=kernel.name, target=kernel.target, certificate=certificate, reason=reason, worst=worst,
        share_of_bound=statistics.median(shares) if shares else None,
        ratio=statistics.median(ratios) if ratios else None,
        baseline=best.most_common(1)[0][0] if best else "",
        kind=kind, losses=tuple(losses), worst_by_dtype=by_dtype,
    )  # fmt: skip
