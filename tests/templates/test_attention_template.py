"""The attention template: its ops are made of calls of dense attention, and take their arguments alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernelworks.dispatch.op import OPS
from kernelworks.templates.attention import reference
from kernelworks.templates.attention.mutants import MUTANTS
from kernelworks.templates.attention.op import Attention
from kernelworks.templates.description import derived_parts

NAMES = ("attention", "attention_fp8", "block_sparse_attention", "paged_attention", "varlen_attn")


def a_call(name: str, case: str) -> dict[str, Any]:
    """The arguments of a case, in float64."""
    made = next(c for c in OPS[name].contract.cases if c.name == case).make(
        torch.Generator().manual_seed(3), torch.float32
    )
    return {n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in made.items()}


@pytest.mark.parametrize(
    ("name", "case"), [("varlen_attn", "window 3, 2, lse of -inf"), ("paged_attention", "window 5")]
)
def test_an_op_of_sequences_is_dense_attention_of_each(name: str, case: str) -> None:
    args = a_call(name, case)
    template: Attention = OPS[name].template
    whole = OPS[name].contract.reference(**args)[0]
    calls = list(template.calls(template.named_arguments((), args)))
    assert len(calls) == len(args["cu_seq_q"]) - 1
    for call in calls:
        assert torch.equal(reference.tokens_first(reference.reference(**call.args)[0]), whole[call.queries])


def test_a_window_in_words_hides_what_its_mask_hides() -> None:
    for left in (-1, 0, 3, 40):
        for queries, keys in ((7, 7), (3, 20), (20, 3)):
            q, k = torch.empty(1, 1, queries, 1), torch.empty(1, 1, keys, 1)
            words = reference.visible(q, k, "bottom_right", None if left < 0 else left + 1, None)
            assert torch.equal(words, reference.sees(queries, keys, (left, 0)))


@pytest.mark.parametrize("name", NAMES)
def test_arguments_that_are_missing_or_unknown_are_refused(name: str) -> None:
    template: Attention = OPS[name].template
    args = dict.fromkeys(template.arguments, 1)
    with pytest.raises(TypeError, match=f"{name} takes .*missing or too many: other"):
        template.named_arguments((), args | {"other": 1})
    with pytest.raises(TypeError, match=f"missing or too many: {template.tensors[1]}"):
        template.named_arguments((), {n: v for n, v in args.items() if n != template.tensors[1]})
    with pytest.raises(TypeError, match="missing or too many"):
        template.named_arguments((*args.values(), 1))


@pytest.mark.parametrize("name", NAMES)
def test_what_the_template_derived_is_told(name: str) -> None:
    parts = derived_parts(OPS[name])
    assert parts["forward"] == OPS[name].passes["forward"].schema
    assert "missing scale" in parts["mutants"] and len(OPS[name].mutants) >= 20


def test_mutants_of_dense_attention_are_told_apart_by_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
