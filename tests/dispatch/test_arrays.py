"""Ops on NumPy's arrays and on what speaks DLPack: what came is given back, and nothing is copied that need not be."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from op_kernels import ALL_NAMES
from torch import Tensor
from torch_calls import NAMES, example, in_precision

import kernelworks as kw
from kernelworks.dispatch import arrays
from kernelworks.dispatch.op import OPS

rng = np.random.default_rng(0)
x = rng.standard_normal((4, 8), dtype=np.float32)
WANT = torch.softmax(torch.from_numpy(x), -1).numpy()


def read_only() -> np.ndarray:
    made = x.copy()
    made.flags.writeable = False
    return made


def unaligned() -> np.ndarray:
    return np.frombuffer(b" " + x.tobytes(), np.float32, offset=1).reshape(x.shape)


LAYOUTS: dict[str, tuple[np.ndarray, bool]] = {  # the same numbers; whether they are read where they lie
    "as it is": (x, True),
    "read-only": (read_only(), True),
    "by columns": (np.asfortranarray(x), True),
    "every second": (np.repeat(x, 2, 1)[:, ::2], True),
    "backwards": (np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1], False),
    "other byte order": (x.astype(x.dtype.newbyteorder()), False),
    "unaligned": (unaligned(), False),
    "a field of a record": (np.rec.fromarrays([x, np.ones(x.shape, "i1")], names="x,flag")["x"], False),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numpy_in_numpy_out(layout: str) -> None:
    array, where_it_lies = LAYOUTS[layout]
    before = array.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = kw.softmax(array)
    assert type(got) is np.ndarray and got.dtype == np.float32 and got.dtype.isnative and got.flags.writeable
    np.testing.assert_allclose(got, WANT, rtol=1e-5)
    assert not np.shares_memory(got, array)
    np.testing.assert_array_equal(array, before)
    borrowed = arrays.as_tensors("x", array)
    assert (borrowed.data_ptr() == array.__array_interface__["data"][0]) is where_it_lies


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0), (1,)])
def test_shapes_without_much_in_them(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    got = kw.gelu(array)
    assert type(got) is np.ndarray and got.shape == shape


@pytest.mark.parametrize(
    "name", [n for n in ALL_NAMES if n != "attention_fp8" and OPS[n].contract.returned_outputs and not n.endswith("_")]
)  # NumPy has no 8-bit floats
def test_every_op_takes_arrays(name: str) -> None:
    op = OPS[name]
    made = op.contract.cases[0].make(torch.Generator().manual_seed(0), torch.float32)
    args = [made.get(n, default) for n, default in _arguments(op)]
    want = op.call(*[a.clone() if isinstance(a, Tensor) else a for a in args])  # it may write to one
    got = op.call(*[a.numpy() if isinstance(a, Tensor) else a for a in args])
    pairs = zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]
    for w, g in pairs:
        assert type(g) is np.ndarray
        np.testing.assert_allclose(g, w.numpy(), rtol=1e-5, atol=1e-6)


def _arguments(op: Any) -> list[tuple[str, Any]]:
    usual = {"bool": False, "int": -100, "str": "mean"}
    schema = torch._C.parse_schema(op.passes["forward"].schema)
    return [(a.name, usual.get(str(a.type))) for a in schema.arguments if a.name != "op_kernel"]


FLOAT32_ALONE = {"grouped_linear"}  # torch's function refuses float64


@pytest.mark.parametrize("name", NAMES)
def test_torchs_signature_takes_arrays(name: str) -> None:
    given = example(OPS[name].torch_signature)
    want = OPS[name].torch_signature.function(**given)  # type: ignore[misc]
    for dtype in (torch.float32, torch.float64):  # of which the second is torch's
        said = {n: v.to(in_precision(v.dtype, dtype)).numpy() if isinstance(v, Tensor) else v for n, v in given.items()}
        if name in FLOAT32_ALONE and dtype is torch.float64:
            with pytest.raises(RuntimeError, match="Double"):
                getattr(kw, name)(**said)
            continue
        got = getattr(kw, name)(**said)
        assert isinstance(want, Tensor) or type(got) is type(want)  # results with names keep them
        for one, its in [(got, want)] if isinstance(want, Tensor) else zip(got, want, strict=True):
            wanted = in_precision(its.dtype, dtype)
            assert type(one) is np.ndarray and one.dtype == str(wanted).removeprefix("torch.")
            np.testing.assert_allclose(one, its.numpy(), rtol=1e-4, atol=1e-5)


def test_out() -> None:
    out = np.empty_like(x)
    assert kw.softmax(x, out=out) is out
    np.testing.assert_allclose(out, WANT, rtol=1e-5)
    tensor = torch.empty(4, 8)
    assert kw.softmax(x, out=tensor) is tensor
    np.testing.assert_allclose(tensor.numpy(), WANT, rtol=1e-5)


def test_a_step_writes_the_arrays() -> None:
    lists = [[np.ones(5, np.float32)] for _ in range(4)]
    numbers = {"step": 1, "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0}
    kw.adamw_(*lists, **numbers)
    assert (lists[0][0] < 1).all()
    lists[0][0].flags.writeable = False
    with pytest.raises(ValueError, match=r"params\[0\] is written to and must not be read-only"):
        kw.adamw_(*lists, **numbers)


def test_a_cache_of_arrays_is_written() -> None:
    rows, cache = np.ones((2, 1, 3), np.float32), np.zeros((2, 2, 1, 3), np.float32)
    kw.cache_append(rows, rows, cache, cache.copy(), np.array([3, -1]))
    assert cache[1, 1].all() and cache.sum() == 3


class Exporter:
    """A tensor of somebody else's."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **asked: Any) -> Any:
        return self.tensor.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def test_dlpack_in_torch_out() -> None:
    got = kw.softmax(Exporter(torch.from_numpy(x)))  # type: ignore[type-var]
    assert type(got) is Tensor
    np.testing.assert_allclose(got.numpy(), WANT, rtol=1e-5)


def test_arrays_beside_tensors_give_tensors() -> None:
    weight = torch.randn(3, 8, requires_grad=True)
    got = kw.linear(x, weight)  # type: ignore[type-var]
    got.sum().backward()
    torch.testing.assert_close(weight.grad, torch.from_numpy(x).sum(0).expand(3, 8))


def test_compiled() -> None:
    def program(a: Any) -> Any:
        return kw.softmax(a) + kw.layer_norm(a, (8,))

    got = torch.compile(program, fullgraph=True, backend="eager")(x)
    np.testing.assert_allclose(got, program(x), rtol=1e-5, atol=1e-6)


REFUSED: tuple[tuple[Callable[[], Any], type[Exception], str], ...] = (
    (lambda: kw.softmax(x.astype(np.float64)), TypeError, "x must have dtype float32, bfloat16, float16, got float64"),
    (
        lambda: kw.softmax(x.astype(np.complex64)),
        TypeError,
        "x must have dtype float32, bfloat16, float16, got complex64",
    ),
    (lambda: kw.softmax(np.array(["a", "b"])), TypeError, "x must be an array of numbers, got <U1"),
    (lambda: kw.softmax(np.array([None])), TypeError, "x must be an array of numbers, got object"),
    (lambda: kw.softmax(np.ma.masked_array(x)), TypeError, "x must be an array without a mask"),
    (lambda: kw.softmax(x.astype(np.longdouble)), TypeError, "x: can't convert np.ndarray of type numpy.longdouble"),
    (lambda: kw.softmax(x, dim=np.array(1)), TypeError, "dim of softmax takes no array"),
    (lambda: kw.softmax(x, out=read_only()), ValueError, "out is written to and must not be read-only"),
    (lambda: kw.softmax(x, out=np.empty_like(x)[:, ::-1]), ValueError, "must not be unaligned or backwards"),
    (lambda: kw.softmax(x, out=x.astype(">f4")), ValueError, "must not be of another byte order"),
    (lambda: kw.softmax(x, out=np.empty((4, 16), np.float32)[:, ::2]), ValueError, "out must be contiguous"),
    (lambda: kw.softmax(x, out=np.empty(3, np.float32)), ValueError, "out must have shape"),
    (lambda: kw.rms_norm([1.0, 2.0], None, eps=1e-5), TypeError, "x must be a torch.Tensor, got list"),
)


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_is_refused(case: int) -> None:
    call, error, says = REFUSED[case]
    with pytest.raises(error, match=says):
        call()


def test_a_refused_float64_says_what_to_do() -> None:
    with pytest.raises(TypeError) as caught:
        kw.gelu(x.astype(np.float64))
    assert caught.value.__notes__ == [
        "NumPy's arrays are float64 unless they are told otherwise: x.astype(numpy.float32)"
    ]
