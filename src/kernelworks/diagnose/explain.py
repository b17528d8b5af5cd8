"""``explain``: which kernel a call would take, why each kernel above it declined, and how long it should take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks import ops
from kernelworks.build import background
from kernelworks.compile import compile_report
from kernelworks.contract import describe
from kernelworks.dispatch.choose import Choice, choose
from kernelworks.dispatch.hooks import find_first_op
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.tuning_records import call_of
from kernelworks.measure import peaks
from kernelworks.measure.bench import limit, predict
from kernelworks.measure.bench.kernel_map import kept_benches
from kernelworks.measure.roofline.kernel_time import count_values
from kernelworks.records import Explanation

__all__ = ["explain", "what_it_asks"]


def what_it_asks(call: Callable[[], Any]) -> tuple[Op, tuple[Any, ...], str | None]:
    """The first kernelworks op that ``call`` reaches, its arguments in schema order, and the kernel asked for.

    Nothing of ours is run. Raises what the arguments' check raises, and ValueError if no op is reached.
    """
    with torch.no_grad():
        found = find_first_op(call)
    if found is None:
        raise ValueError("the call reached no kernelworks op")
    return found


def _until_native(op: Op, choice: Choice, pass_: str) -> Choice:
    """The choice, or torch's function as long as calls go through Python and the call is too small for that way."""
    if not op.entry.yields_to_torch(choice, pass_):
        return choice
    because = f"the way to a kernel in Python takes too long for so small a call; through C++ it is {choice.way}'s"
    return dataclasses.replace(
        choice, kernel=op.kernel("torch"), native=True, backward=None, because=f"{because}: {choice.because}"
    )


def _argument(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
        return f"{name} {len(value)} tensors"
    return f"{name} {describe(value) if isinstance(value, Tensor) else value}"


def explain(op: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """What the dispatcher does with ``op(*args, **kwargs)``, without running it. Of a call whose gradients are wanted
    the kernels of both passes are named; work, bound and prediction are the forward's.

    Args:
        op: the op's name (``"rms_norm"``) or its function; the other arguments are those of the call.
    Returns: a record; ``kernelworks explain`` prints it. The bound needs this machine's measured peaks (``kernelworks
        machine``), the prediction a bench of the op on it (``kernelworks bench``); without them they are None.
    Raises: ValueError if there is no such op; what the op raises for bad arguments.
    """
    name = op if isinstance(op, str) else op.__name__
    if name not in OPS:
        raise ValueError(f"op must be one of {', '.join(OPS)}, got {name!r}")
    function = getattr(ops, name)
    found, asked, kernel = what_it_asks(lambda: function(*args, **kwargs))
    wanted = found.inputs_requiring_grad(asked) if torch.is_grad_enabled() and "backward" in found.passes else ()
    request = count_values(found, found.request("forward", asked), asked)
    of = found.request("training", asked, wanted) if wanted else request
    choice = _until_native(found, choose(found, of, kernel), of.pass_) if kernel is None else choose(found, of, kernel)
    cost = found.contract.cost(request)
    names = found.passes["forward"].names
    shown = ", ".join(_argument(n, v) for n, v in zip(names, asked, strict=True) if v is not None)
    record = Explanation(
        op=found.name,
        call=shown,
        kernel=choice.way,
        because=choice.because,
        declined=choice.declined,
        threads=request.threads,
        flop=cost.flop,
        bytes=cost.bytes,
        assumed=found.contract.cost_assumption(request),
        device=request.device,
        through_python=background.fallback_reason(),
        compiled=compile_report().of(found.name, call_of(of)),
    )
    known = peaks.cached_peaks(request.device)
    if known is None:
        return record
    least = limit(found, request, known, math.inf if request.device == "cuda" else cost.bytes)
    predicted = predict(found, request, choice.kernel.name, known, kept_benches(found.name, request.device))
    return dataclasses.replace(
        record,
        bound_us=least.seconds * 1e6,
        predicted_us=None if predicted is None else predicted * 1e6,
        bottleneck=least.bottleneck,
        peak=least.peak,
    )
