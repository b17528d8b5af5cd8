"""GGUF files: their tensors as packed bytes that lie in the file, for ``quantized_linear`` and its module."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.packed_formats import FORMATS, dequantize_blocks
from kernelworks.nn.gguf_header import ALIGNMENT, MAGIC, TENSOR_TYPES, GGUFError, TensorEntry, read_header
from kernelworks.nn.quantized_linear import QuantizedLinear

__all__ = ["GGUFError", "GGUFFile", "GGUFTensor", "load_gguf", "save_gguf"]

DTYPES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64, "I8": torch.int8,
    "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip
DECODED_TYPES = tuple(name for name, found in FORMATS.items() if found.of_ggml)
NUMBERS = {found.name: number for number, found in TENSOR_TYPES.items()}


@dataclass(frozen=True)
class GGUFTensor:
    """A tensor of a GGUF file.

    ``format`` is GGML's name of its type and ``shape`` that of its numbers, torch's order. ``data`` lies in the mapped
    file: numbers of a plain type (``"F32"``, ``"F16"``, ``"BF16"``, ...) in their dtype and shape, all others uint8
    [..., bytes of the last dimension], as ``dequantize`` and ``quantized_linear`` take them.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: Tensor

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The numbers, [*shape] of ``dtype``; a copy. ValueError if nothing here decodes the format."""
        if self.format in DTYPES:
            return self.data.to(dtype, copy=True)
        if self.format not in FORMATS:
            raise ValueError(
                f"tensor {self.name!r} is of {self.format}, which nothing here decodes; decoded are "
                f"{', '.join((*DTYPES, *DECODED_TYPES))}"
            )
        return dequantize_blocks(self.data, self.format).to(dtype)


class GGUFFile(Mapping[str, GGUFTensor]):
    """The tensors of a GGUF file by name, and ``metadata``: keys with numbers, bools, strings and lists of those."""

    def __init__(self, path: str, version: int, metadata: Mapping[str, Any], tensors: Mapping[str, GGUFTensor]) -> None:
        self.path, self.version, self.metadata = path, version, metadata
        self.tensors = tensors

    def __getitem__(self, name: str) -> GGUFTensor:
        try:
            return self.tensors[name]
        except KeyError:
            raise KeyError(f"{self.path} has no tensor {name!r}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"GGUFFile({self.path!r}, {len(self)} tensors, {len(self.metadata)} keys of metadata)"

    def linear(
        self, name: str, *, activations: str = "float32", dtype: torch.dtype = torch.float32
    ) -> QuantizedLinear:  # fmt: skip
        """A layer of the tensors ``NAME.weight`` and, if there is one, ``NAME.bias``, which is given in ``dtype``.

        The weight's bytes stay in the mapped file: nothing is copied before the layer is moved or written to. Raises
        KeyError if there is no weight, ValueError if it is no matrix of a format that ``quantized_linear`` takes.
        """
        weight, bias = self[f"{name}.weight"], self.get(f"{name}.bias")
        if weight.format not in FORMATS or len(weight.shape) != 2:
            raise ValueError(
                f"tensor {weight.name!r} must be a matrix in {' or '.join(DECODED_TYPES)}, got "
                f"{weight.format} of shape {list(weight.shape)}"
            )
        return QuantizedLinear.from_packed(
            weight.data, weight.format, None if bias is None else bias.dequantize(dtype), activations=activations
        )  # fmt: skip


# ---------------------------------------------------------------- reading


def load_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """The tensors of a GGUF file (versions 2 and 3, little-endian), mapped into memory.

    Args:
        path: of the file. Its bytes are mapped and read when they are used; nobody may shorten the file meanwhile.
            Writing to a tensor changes memory of this process, never the file.

    Returns:
        A mapping of names to ``GGUFTensor``: format, shape and packed bytes. ``metadata`` holds the file's keys;
        ``linear(name)`` makes a ``kernelworks.nn.QuantizedLinear``.

    Cost: the header is read whole; tensors take no memory before they are used.
    Raises: ``GGUFError``, a ValueError that names file, field and value, for whatever GGUF does not allow: another
    magic or version, an end before the end, lengths beyond the file, types that are not known, tensors that overlap,
    lie askew or beyond the end, a name twice. OSError if the file cannot be read.
    Source: ggml/docs/gguf.md.
    """
    shown = os.fspath(path)
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise GGUFError(f"{shown}: the header needs 24 bytes at byte 0, and the file has 0: it is empty")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    header = read_header(shown, memoryview(mapped))
    tensors = {entry.name: _tensor_of(mapped, entry) for entry in header.tensors}
    return GGUFFile(shown, header.version, header.metadata, tensors)


def _tensor_of(mapped: mmap.mmap, entry: TensorEntry) -> GGUFTensor:
    plain = DTYPES.get(entry.type.name)
    dtype = torch.uint8 if plain is None else plain
    shape = entry.shape
    if plain is None:
        shape = (*entry.shape[:-1], entry.shape[-1] // entry.type.block * entry.type.nbytes)
    if entry.nbytes == 0:
        data = torch.empty(shape, dtype=dtype)
    else:
        count = entry.nbytes // dtype.itemsize
        data = torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.begin).view(shape)
    return GGUFTensor(entry.name, entry.type.name, entry.shape, data)


# ---------------------------------------------------------------- writing


def save_gguf(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor | GGUFTensor | tuple[str, Tensor]],
    metadata: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Writes a GGUF file, version 3.

    Args:
        path: where to write; a file there is replaced when the new one is whole.
        tensors: by name: a tensor of a plain dtype, a ``GGUFTensor``, or ``(format, bytes)`` with uint8
            [..., bytes of the last dimension], as ``quantize`` makes them.
        metadata: by key: bool, int, float, str, or a list of those of one kind.

    Raises: TypeError, ValueError naming the tensor or key.
    """
    entries = [_entry_to_write(name, given) for name, given in tensors.items()]
    head = [MAGIC, struct.pack("<IQQ", 3, len(entries), len(metadata or {}))]
    for key, value in (metadata or {}).items():
        type, raw = _value_to_write(key, value)
        head += [_text_to_write(key), struct.pack("<I", type), raw]
    offset = 0
    for name, number, shape, data in entries:
        head += [_text_to_write(name), struct.pack("<I", len(shape)), struct.pack(f"<{len(shape)}Q", *reversed(shape))]
        head.append(struct.pack("<IQ", number, offset))
        offset += -(-data.nbytes // ALIGNMENT) * ALIGNMENT
    target = Path(path)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            file.write(b"".join(head))
            for *_, data in entries:
                file.write(b"\0" * (-file.tell() % ALIGNMENT))
                file.write(data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b"")
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def _text_to_write(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _entry_to_write(
    name: str, given: Tensor | GGUFTensor | tuple[str, Tensor]
) -> tuple[str, int, tuple[int, ...], Tensor]:  # fmt: skip
    if isinstance(given, Tensor):
        format = next((said for said, dtype in DTYPES.items() if dtype == given.dtype), "")
        if not format:
            raise TypeError(f"tensor {name!r} has dtype {given.dtype}; bytes are given as (format, bytes)")
        return name, NUMBERS[format], tuple(given.shape), given.detach().cpu().contiguous()
    format, data = (given.format, given.data) if isinstance(given, GGUFTensor) else given
    if format not in NUMBERS:
        raise ValueError(f"tensor {name!r} is of {format!r}, which is no type of GGML's")
    data, found = data.detach().cpu().contiguous(), TENSOR_TYPES[NUMBERS[format]]
    if format in DTYPES:
        return name, NUMBERS[format], tuple(data.shape), data
    if data.dtype != torch.uint8 or data.dim() == 0 or data.shape[-1] % found.nbytes:
        raise ValueError(
            f"tensor {name!r} must be uint8 [..., bytes] with whole blocks of {format}, {found.nbytes} bytes each; got "
            f"{data.dtype} {list(data.shape)}"
        )
    shape = (*data.shape[:-1], data.shape[-1] // found.nbytes * found.block)
    return name, NUMBERS[format], shape, data


SCALAR_TYPES = {bool: (7, "B"), float: (12, "d")}


def _value_to_write(key: str, value: Any) -> tuple[int, bytes]:
    """GGUF's number of a value's type, and its bytes."""
    if isinstance(value, str):
        return 8, _text_to_write(value)
    if isinstance(value, (list, tuple)):
        kinds = {type(item) for item in value}
        if len(kinds) > 1 or list in kinds or tuple in kinds:
            raise TypeError(f"metadata {key!r} must be a list of one kind, got {', '.join(k.__name__ for k in kinds)}")
        made = [_value_to_write(key, item) for item in value]
        if int in kinds:  # all as wide as the widest
            made = [(11, struct.pack("<q", item)) for item in value]
        head = struct.pack("<IQ", made[0][0] if made else 8, len(made))
        return 9, head + b"".join(raw for _, raw in made)
    if isinstance(value, int) and not isinstance(value, bool):
        narrow = 0 <= value < 2**32
        return (4, struct.pack("<I", value)) if narrow else (11, struct.pack("<q", value))
    if type(value) not in SCALAR_TYPES:
        raise TypeError(f"metadata {key!r} must be bool, int, float, str or a list, got {type(value).__name__}")
    number, code = SCALAR_TYPES[type(value)]
    return number, struct.pack(f"<{code}", value)
