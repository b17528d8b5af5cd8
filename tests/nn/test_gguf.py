"""GGUF files: what another library wrote is read, what is written is read again, and nothing odd is believed."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelworks as kw
from kernelworks.contract.packed_formats import FORMATS
from kernelworks.nn.gguf import GGUFError

# Written by the PyPI package gguf 0.19.0: a matrix in Q4_1 whose bytes count up, a bias, a matrix in float16.
WITNESS = zlib.decompress(base64.b64decode(
    "eNpzdw91Y2ZgYABhEGCH0iJQOj01L7UoMUcvsSg5I7MkNbmktCiVAyjOApUvSS0uYYWyE/VKjY1YoIYgBNOMjdggbHuEYGVqMUgVIztcpDy/KKWY"
    "E8jkQHIOI5SugAlUHl4JZTGwwbVm5pWAdbKi6fz3//9/ZhS3ZJqZcAMZv/9DAAdUIlevPDUzPaOECchWgIoxQWmYgchW5uolZSYWMyKpAgEHNEdn"
    "MCFpZ0KSTEDSxMjEzMLKxs7BycXNw8vHLyAoJCwiKiYuISklLSMrJ6+gqKSsoqqmzoATHLAHETilbYDOcmJwYXBlcMMmDQBsnDIx"
))  # fmt: skip


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_file_that_gguf_wrote(tmp_path: Path) -> None:
    file = kw.load_gguf(written(tmp_path / "a.gguf", WITNESS))
    assert file.version == 3 and list(file) == ["m.weight", "m.bias", "h"]
    assert file.metadata == {
        "general.architecture": "test", "a.u32": 7, "a.f32": 0.5, "a.yes": True, "a.words": ["x", "yé", ""],
        "a.ints": [1, -2, 3], "a.i64": -5,
    }  # fmt: skip
    weight = file["m.weight"]
    assert (weight.format, weight.shape) == ("Q4_1", (2, 32))
    assert torch.equal(weight.data, torch.arange(40, dtype=torch.uint8).view(2, 20))
    assert torch.equal(weight.dequantize(), kw.dequantize(weight.data, "Q4_1"))
    assert torch.equal(file["h"].dequantize(), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    layer = file.linear("m")
    x = torch.randn(3, 32)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, weight.dequantize(), torch.tensor([1.5, -2.0])))
    assert layer.weight.data_ptr() == weight.data.data_ptr()  # nothing is copied
    with pytest.raises(KeyError, match=r"has no tensor 'n\.weight'"):
        file.linear("n")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    tensors: dict[str, Any] = {
        name: (name, torch.randint(0, 256, (3, 2 * found.nbytes), generator=generator).to(torch.uint8))
        for name, found in FORMATS.items()
        if found.of_ggml
    }
    tensors |= {"bf16": torch.randn(5).bfloat16(), "i64": torch.tensor([[2**40], [-1]]), "none": torch.zeros(0, 4)}
    metadata = {"b": False, "i": -3, "u": 9, "f": 0.1, "s": "§", "l": [1, 2**40], "w": ["a", ""], "e": [], "t": [True]}
    path = tmp_path / "b.gguf"
    kw.save_gguf(path, tensors, metadata)
    file = kw.load_gguf(path)
    assert file.metadata == metadata and list(file) == list(tensors)
    for name, found in ((name, FORMATS[name]) for name in tensors if name in FORMATS):
        assert (file[name].format, file[name].shape) == (name, (3, 2 * found.block))
        assert torch.equal(file[name].data, tensors[name][1])
        wide = kw.dequantize(tensors[name][1], name)
        torch.testing.assert_close(file[name].dequantize(), wide, rtol=0, atol=0, equal_nan=True)
    assert all(torch.equal(file[name].data, tensors[name]) for name in ("bf16", "i64", "none"))
    kw.save_gguf(tmp_path / "c.gguf", dict(file), file.metadata)
    assert (tmp_path / "c.gguf").read_bytes() == path.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.gguf", "c.gguf"]


def test_writing_to_a_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    file = kw.load_gguf(written(tmp_path / "a.gguf", WITNESS))
    file["m.bias"].data[0] = 9.0
    assert float(file["m.bias"].dequantize()[0]) == 9.0
    assert (tmp_path / "a.gguf").read_bytes() == WITNESS


# ---------------------------------------------------------------- what is not believed


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def header(keys: int = 0, tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def entry(
    name: str | bytes = "t", dims: tuple[int, ...] = (32,), type: int = 2, offset: int = 0, count: int | None = None
) -> bytes:  # fmt: skip
    said = len(dims) if count is None else count
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", said, *dims, type, offset)


def key(name: str | bytes, type: int, raw: bytes) -> bytes:
    return text(name) + struct.pack("<I", type) + raw


def aligned(head: bytes, size: int = 64) -> bytes:
    return head + b"\0" * (-len(head) % 32) + b"\0" * size


ODD = {
    "empty": (b"", "the header needs 24 bytes at byte 0, and the file has 0"),
    "short": (b"GGUF\3\0\0\0", "the header needs 24 bytes at byte 0, and the file has 8"),
    "magic": (b"GGML" + bytes(20), "the magic must be b'GGUF', got b'GGML'"),
    "version 1": (header(version=1), "version must be 2 or 3, got 1"),
    "big-endian": (header(version=3 << 24), "version is 50331648: the file is big-endian"),
    "many keys": (header(keys=2**60), f"metadata_kv_count is {2**60}, for which 0 bytes are too few"),
    "many tensors": (header(tensors=2**63), f"tensor_count is {2**63}, for which 0 bytes are too few"),
    "key beyond the end": (header(1) + struct.pack("<Q", 500) + bytes(40), "metadata key 0 needs 500 bytes"),
    "overlong key": (header(1) + text(b"k" * 70000), "metadata key 0 may have 65535 bytes at most, got 70000"),
    "key twice": (header(2) + 2 * key("k", 0, b"\1"), "metadata key 'k' stands there twice"),
    "key not UTF-8": (header(1) + key(b"\xff\xfe", 0, b"\1"), r"metadata key 0 must be UTF-8, got b'\\xff\\xfe'"),
    "odd bool": (header(1) + key("k", 7, b"\2"), "'k' must be a bool, 0 or 1, got 2"),
    "type of a value": (header(1) + key("k", 13, bytes(8)), "'k' has a value of a type that is not known, number 13"),
    "string beyond the end": (header(1) + key("k", 8, struct.pack("<Q", 2**62)), f"'k' needs {2**62} bytes"),
    "array beyond the end": (header(1) + key("k", 9, struct.pack("<IQ", 4, 2**61)), f"'k' needs {2**63} bytes"),
    "strings beyond the end": (header(1) + key("k", 9, struct.pack("<IQ", 8, 2**61)), f"'k' needs {2**64} bytes"),
    "deep arrays": (header(1) + key("k", 9, struct.pack("<IQ", 9, 1) * 12 + bytes(12)), "arrays, more than 8"),
    "alignment": (header(1) + key("general.alignment", 4, struct.pack("<I", 48)), "alignment must be a power of two"),
    "alignment 0": (header(1) + key("general.alignment", 4, bytes(4)), "alignment must be a power of two"),
    "alignment a word": (header(1) + key("general.alignment", 8, text("32")), "from 8 on, got '32'"),
    "overlong name": (aligned(header(0, 1) + entry("n" * 65)), "tensor 0 may have 64 bytes at most, got 65"),
    "dimensions": (aligned(header(0, 1) + entry(count=5)), "n_dims of tensor 't' may be 4 at most, got 5"),
    "type": (aligned(header(0, 1) + entry(type=5)), "the type of tensor 't' is number 5, which is not known"),
    "part of a block": (aligned(header(0, 1) + entry(dims=(33, 2))), r"is \[2, 33\], whose rows fill no whole blocks"),
    "overflow": (aligned(header(0, 1) + entry(dims=(2**32, 2**32))), "more numbers than 2\\^63"),
    "overflow by nought": (aligned(header(0, 1) + entry(dims=(2**64 - 32, 0))), "more numbers than 2\\^63"),
    "askew": (aligned(header(0, 1) + entry(offset=8)), "the offset of tensor 't' must be a multiple of 32, got 8"),
    "beyond the end": (aligned(header(0, 1) + entry(offset=64)), "'t' of 18 bytes at offset 64 ends at byte 146"),
    "far beyond the end": (aligned(header(0, 1) + entry(offset=2**64 - 32)), "it is truncated"),
    "overlap": (aligned(header(0, 2) + entry("a", (64,)) + entry("b", offset=32)), "'b' at offset 32 overlaps 'a'"),
    "twice": (aligned(header(0, 2) + entry("a") + entry("a", offset=32)), "tensor 'a' stands there twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_gguf(name: str, tmp_path: Path) -> None:
    data, said = ODD[name]
    with pytest.raises(GGUFError, match=said) as raised:
        kw.load_gguf(written(tmp_path / "odd.gguf", data))
    assert str(raised.value).startswith(str(tmp_path / "odd.gguf"))


def test_right_neighbours_of_what_is_no_gguf(tmp_path: Path) -> None:
    two = aligned(header(0, 2, version=2) + entry("a", (32,)) + entry("b", offset=32))
    assert list(kw.load_gguf(written(tmp_path / "a.gguf", two))) == ["a", "b"]
    wide = header(1, 1) + key("general.alignment", 4, struct.pack("<I", 64)) + entry("n" * 64, (32, 1, 1, 1))
    file = kw.load_gguf(written(tmp_path / "b.gguf", wide + b"\0" * (-len(wide) % 64) + bytes(18)))
    assert file["n" * 64].shape == (1, 1, 1, 32)
    other = aligned(header(0, 1) + entry("q", (256,), type=10), 96)  # a type of GGML's that nothing here decodes
    tensor = kw.load_gguf(written(tmp_path / "c.gguf", other))["q"]
    assert (tensor.format, tuple(tensor.data.shape)) == ("Q2_K", (84,))
    with pytest.raises(ValueError, match="tensor 'q' is of Q2_K, which nothing here decodes"):
        tensor.dequantize()


def test_a_file_cut_or_damaged_anywhere_raises_nothing_else(tmp_path: Path) -> None:
    path, draw = tmp_path / "d.gguf", random.Random(4)
    end = WITNESS.index(bytes(range(20)))  # where tensors begin
    for size in range(end):
        with pytest.raises(GGUFError):
            kw.load_gguf(written(path, WITNESS[:size]))
    for _ in range(600):
        data = bytearray(WITNESS)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(end)] = draw.choice((0, 1, 127, 255, draw.randrange(256)))
        try:
            for tensor in kw.load_gguf(written(path, bytes(data))).values():
                tensor.data.sum()
        except GGUFError as error:
            assert str(error).startswith(str(path))


def test_what_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "e.gguf"
    for tensors, metadata, kind, said in (
        ({"t": torch.zeros(2, dtype=torch.complex64)}, {}, TypeError, "tensor 't' has dtype torch.complex64"),
        ({"t": ("Q9", torch.zeros(2))}, {}, ValueError, "'Q9', which is no type of GGML's"),
        ({"t": ("Q4_0", torch.zeros(17, dtype=torch.uint8))}, {}, ValueError, "whole blocks of Q4_0, 18 bytes each"),
        ({}, {"k": None}, TypeError, "metadata 'k' must be bool, int, float, str or a list, got NoneType"),
        ({}, {"k": [1, "a"]}, TypeError, "metadata 'k' must be a list of one kind"),
    ):  # fmt: skip
        with pytest.raises(kind, match=said):
            kw.save_gguf(path, tensors, metadata)
    assert not list(tmp_path.iterdir())


def test_a_layer_of_what_is_no_matrix_of_a_format(tmp_path: Path) -> None:
    kw.save_gguf(tmp_path / "f.gguf", {"a.weight": torch.zeros(2, 32), "b.weight": ("Q8_0", torch.zeros(34).byte())})
    file = kw.load_gguf(tmp_path / "f.gguf")
    for name in ("a", "b"):
        with pytest.raises(ValueError, match=rf"tensor '{name}.weight' must be a matrix in Q8_0 or"):
            file.linear(name)
    packed = torch.zeros(4, 34, dtype=torch.uint8)
    for weight, format, bias, kind, said in (
        (packed, "Q9", None, ValueError, "format must be 'Q8_0'"),
        (packed.float(), "Q8_0", None, TypeError, "weight must have dtype uint8, got float32"),
        (packed[:, 1:], "Q8_0", None, ValueError, "whole blocks of Q8_0, 34 bytes each"),
        (packed, "Q8_0", torch.zeros(3), ValueError, r"bias must have shape \[4\], got float32\[3\]"),
    ):
        with pytest.raises(kind, match=said):
            kw.nn.QuantizedLinear.from_packed(weight, format, bias)
