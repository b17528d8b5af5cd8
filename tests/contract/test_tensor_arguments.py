"""Tensors by named dimensions: what is accepted, in which words the rest is refused, and what else follows."""

from __future__ import annotations

import pytest
import torch

from kernelworks.contract import TensorSpec, spec, tensor_argument
from kernelworks.contract.arguments import Arguments, Number, check_of, errors_of, limits_of, right_of
from kernelworks.contract.limits import IndicesOf
from kernelworks.contract.tensor_argument import GivenArguments, T, shape_of, sizes_of
from kernelworks.dispatch.op import OPS

ATTENDED: Arguments = {
    "q": T("B H Lq D", where=("1 <= D <= 256",)),
    "k": T("B Hkv Lk D", like="q", where=("divides(Hkv, H)",)),
    "mask": T("B|1 H|1 Lq Lk", dtypes=(torch.bool,), optional=True),
}
MULTIPLIED: Arguments = {"x": T("... K"), "weight": T("N K", like="x"), "residual": T("... N", like="x")}


def call(*shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return dict(zip(ATTENDED, (torch.ones(shape) for shape in shapes), strict=False))


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((2, 4, 3, 8), (2, 2, 5, 8)), ""),
        (((2, 0, 3, 8), (2, 0, 5, 8)), ""),
        (((2, 4, 3, 8), (3, 2, 5, 8)), "k must have shape [B=2, Hkv, Lk, D=8], B and D as in q"),
        (((2, 4, 3, 8), (2, 3, 5, 8)), "with divides(Hkv, H), H = 4; got [2, 3, 5, 8]"),
        (((2, 4, 3, 8), (2, 0, 5, 8)), "with divides(Hkv, H), H = 4"),
        (((2, 4, 3, 257), (2, 2, 5, 257)), "q must have shape [B, H, Lq, D], with 1 <= D <= 256; got [2, 4, 3, 257]"),
        (((4, 3, 8), (2, 2, 5, 8)), "q must have shape [B, H, Lq, D]"),
    ],
)
def test_a_name_stands_for_one_size(shapes: tuple[tuple[int, ...], ...], says: str) -> None:
    for given in (call(*shapes), {name: spec(value) for name, value in call(*shapes).items()}):
        check = check_of(ATTENDED, {"mask": None})
        if not says:
            check(**given)
            continue
        with pytest.raises(ValueError, match="must have shape") as error:
            check(**given)
        assert says in str(error.value)


def test_a_dimension_may_be_one_instead() -> None:
    mask = T("B|1 Lq", dtypes=(torch.bool,))
    for shape, fits in (((2, 3), True), ((1, 3), True), ((3, 3), False), ((2, 1), False)):
        given = GivenArguments(call((2, 4, 3, 8)))
        ATTENDED["q"].check("q", given["q"], given)
        if fits:
            mask.check("mask", torch.ones(shape).bool(), given)
        else:
            with pytest.raises(ValueError, match=r"mask must have shape \[B=2\|1, Lq=3\], B and Lq as in q; got"):
                mask.check("mask", torch.ones(shape).bool(), given)


def test_one_instead_names_no_size() -> None:
    check_of({"mask": T("B|1 L"), "x": T("B L")})(mask=torch.ones(1, 3), x=torch.ones(4, 3))


@pytest.mark.parametrize("rest", [(), (5,), (2, 0, 3)])
def test_dots_stand_for_the_same_dimensions(rest: tuple[int, ...]) -> None:
    args = {"x": torch.ones(*rest, 4), "weight": torch.ones(6, 4), "residual": torch.ones(*rest, 6)}
    check_of(MULTIPLIED)(**args)
    sizes = sizes_of(MULTIPLIED, args)
    assert sizes == {"rest": rest, "K": 4, "N": 6} and shape_of("... N", sizes) == (*rest, 6)
    with pytest.raises(ValueError, match="residual must have shape"):
        check_of(MULTIPLIED)(**args | {"residual": torch.ones(2, *rest, 6)})


def test_either_shape() -> None:
    table = T("L R or B|1 L R")
    for shape in ((3, 4), (2, 3, 4), (1, 3, 4)):
        given = GivenArguments({"x": torch.ones(2, 3)})
        T("B L").check("x", given["x"], given)
        table.check("table", torch.ones(shape), given)
        assert given.sizes["R"] == 4
    with pytest.raises(ValueError, match=r"must have shape \[L=3, R=4\] or \[B=2\|1, L=3, R=4\], L and B as in x"):
        table.check("table", torch.ones(3, 3, 4), given)


def test_memory_without_gaps_is_seen_of_a_spec_too() -> None:
    for value in (torch.ones(2, 3)[:, :2], torch.ones(3, 2).T):
        for one in (value, spec(value)):
            with pytest.raises(ValueError, match="x must be contiguous, got strides"):
                T("M N", contiguous=True).check("x", one, GivenArguments())
    dense = TensorSpec((2, 1, 3), torch.float32, (3, 77, 1), "cpu")  # the stride of one element says nothing
    T("A B C", contiguous=True).check("x", dense, GivenArguments())


def test_all_are_on_one_device() -> None:
    with pytest.raises(ValueError, match="weight must be on x's device cpu, got meta"):
        check_of(MULTIPLIED)(x=torch.ones(2, 4), weight=torch.ones(6, 4, device="meta"), residual=torch.ones(2, 6))


@pytest.mark.parametrize("arguments", [ATTENDED, MULTIPLIED, {"x": T("N C ... L"), "eps": Number()}])
def test_wrong_calls_are_wrong_in_their_argument_alone(arguments: Arguments) -> None:
    check = check_of(arguments)
    check(**right_of(arguments))
    errors = errors_of(arguments)
    assert {text.split(" ")[0] for _, _, _, text in errors} == set(arguments)
    for what, make, kind, text in errors:
        with pytest.raises(kind) as error:
            check(**make())
        assert text in str(error.value), what


def test_sizes_of_right_calls_differ() -> None:
    """If two dimensions were alike, a check that mixes them up would pass."""
    right = right_of(ATTENDED)
    assert len({right.sizes[name] for name in ("B", "H", "Lq", "D")}) == 4


def test_indices_say_what_they_point_into() -> None:
    ids = T("...", dtypes=(torch.int64,), index_of="V")
    assert limits_of({"ids": ids, "weight": T("V D")}) == {"ids": IndicesOf("weight", 0)}
    assert limits_of({"logits": T("... V"), "target": ids}) == {"target": IndicesOf("logits", -1)}


@pytest.mark.parametrize("shape", ["... ...", "A-B", "N K|2", "1D"])
def test_a_shape_that_says_nothing_is_refused(shape: str) -> None:
    with pytest.raises(ValueError, match="shape must"):
        T(shape)


def test_every_op_names_its_dimensions() -> None:
    """What a condition asks for is a size or a number of the call: a name that nobody gives is never looked at."""
    for name in OPS:
        arguments: Arguments = getattr(OPS[name].template, "arguments", {})
        known = {"rest", "min", "max", "len", "divides", *arguments}
        for kind in arguments.values():
            known |= {d.name for d in kind.dimensions} if isinstance(kind, T) else set()
        for kind in arguments.values():
            for text in kind.where if isinstance(kind, T) else ():
                assert set(compile(text, name, "eval").co_names) <= known, (name, text)


def test_wrong_calls_of_a_convolution_are_found_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made while an op package loads: all sizes of ten dimensions are millions of calls, and took seconds."""
    asked = 0
    holds = tensor_argument.Condition.holds

    def counted(condition: tensor_argument.Condition, sizes: tensor_argument.Sizes) -> bool:
        nonlocal asked
        asked += 1
        return holds(condition, sizes)

    monkeypatch.setattr(tensor_argument.Condition, "holds", counted)
    for name in ("conv1d", "conv3d", "conv_transpose3d"):
        assert len(errors_of(OPS[name].template.arguments)) > 20
    assert asked < 20_000
