"""What the command line names: tensors by their shapes, values by name, a model in a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kernelworks.dispatch.op import Op
from kernelworks.machine import has_gpu

__all__ = ["model_of", "parse_arguments"]

DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
}
TRUE, FALSE = ("1", "true", "yes"), ("0", "false", "no")
SHAPE = re.compile(r"(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def _tensor(text: str, dtype: str, kind: str) -> torch.Tensor:
    match = SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(f"not a shape such as 16x4096 or 16x4096:bfloat16: {text!r}")
    shape = [int(size) for size in match["shape"].split("x")]
    chosen = _dtype(match["dtype"] or ("int64" if kind == "ids" else dtype))
    try:
        return torch.ones(shape, dtype=chosen) if chosen.is_floating_point else torch.zeros(shape, dtype=chosen)
    except RuntimeError as error:
        raise ValueError(f"a tensor of {text} cannot be made here: {str(error).splitlines()[0][:200]}") from error


def _value(text: str, kind: str, name: str, dtype: str) -> Any:
    """One argument as its schema's type has it."""
    if text.lower() == "none":
        return None
    bare = kind.removeprefix("Optional[").removesuffix("]")
    if bare == "Tensor":
        return _tensor(text, dtype, "ids" if name in ("ids", "target") else "")
    if bare == "bool":
        if text.lower() not in (*TRUE, *FALSE):
            raise ValueError(f"{name} must be true or false, got {text!r}")
        return text.lower() in TRUE
    if bare in ("int", "float"):
        try:
            return int(text) if bare == "int" else float(text)
        except ValueError:
            raise ValueError(f"{name} must be {'an' if bare == 'int' else 'a'} {bare}, got {text!r}") from None
    return text


def parse_arguments(op: Op, texts: Sequence[str], dtype: str = "float32", device: str = "cpu") -> dict[str, Any]:
    """The arguments of one call by name, tensors on ``device``.

    ``texts`` are values in the order of the op's schema and ``NAME=VALUE`` pairs; a tensor is given by its shape
    (``16x4096``, with ``:bfloat16`` where it differs from ``dtype``). Without any, the contract's first benchmark case
    is taken. Raises ValueError for a name, shape or dtype that does not exist, and for an argument that is missing.
    """
    _dtype(dtype)  # no shape may ask for it
    if device == "cuda" and not has_gpu():
        raise ValueError("this machine has no CUDA device")
    with torch.device(device):
        return _parse_arguments(op, texts, dtype, device)


def _parse_arguments(op: Op, texts: Sequence[str], dtype: str, device: str) -> dict[str, Any]:
    if not texts:
        cases = (op.contract.device_bench_cases if device == "cuda" else ()) or op.contract.bench_cases
        return cases[0].make(torch.Generator(device).manual_seed(0), _dtype(dtype))
    schema = torch._C.parse_schema(op.passes["forward"].schema)
    kinds = {argument.name: str(argument.type) for argument in schema.arguments if argument.name != "op_kernel"}
    given: dict[str, Any] = {}
    for index, text in enumerate(texts):
        name, equals, value = text.partition("=")
        if not equals:
            if index >= len(kinds):
                raise ValueError(f"{op.name} takes {len(kinds)} arguments ({', '.join(kinds)}), got {len(texts)}")
            name, value = list(kinds)[index], text
        if name not in kinds:
            raise ValueError(f"{op.name} has no argument {name!r}; it has {', '.join(kinds)}")
        if name in given:
            raise ValueError(f"{name} is given twice")
        given[name] = _value(value, kinds[name], name, dtype)
    return given


def model_of(where: str) -> nn.Module:
    """The module that the function ``FILE.py:FUNCTION`` returns when it is called without arguments.

    Raises what ``observe.program.from_target`` raises, and its TargetError where something else comes back.
    """
    from kernelworks.profile.program import from_target
    from kernelworks.profile.target import NoFile, NotCallable

    if ".py:" not in where:
        raise NoFile(f"the model must be given as FILE.py:FUNCTION, got {where!r}")
    found = from_target(where).run()
    if not isinstance(found, nn.Module):
        raise NotCallable(f"{where} returns {type(found).__name__}, not a torch.nn.Module")
    return found
