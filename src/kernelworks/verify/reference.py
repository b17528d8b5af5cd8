"""The reference of one case: the inputs, the float64 outputs and gradients, and their bounds."""

from __future__ import annotations

import contextlib
import inspect
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import as_float64
from kernelworks.contract import Case, Contract
from kernelworks.contract.complex_numbers import is_inexact
from kernelworks.contract.results import ChosenIndex, EqualIndex, Equations, Relation
from kernelworks.dispatch.mutation import results_of
from kernelworks.dispatch.op import Op
from kernelworks.machine import has_gpu
from kernelworks.verify.compare import chosen_values, compare, compare_result, moved_to_choice, right_choices
from kernelworks.verify.reference_cache import ReferenceCache

__all__ = [
    "Piece", "Reference", "compute_reference", "copy_tensors", "device_of", "flat_outputs", "follow_choice",
    "gradient_of", "output_bounds", "output_reference", "to_device",
]  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """Some rows of a result: which, and the shape of the whole."""

    rows: Tensor
    shape: tuple[int, ...]

    def rows_of(self, result: Tensor) -> Tensor:
        return result[self.rows.to(result.device)]


@dataclass(frozen=True)
class Reference:
    """What is right on some inputs, and how far off it a right kernel may be; all of it, or drawn rows (``pieces``)."""

    args: dict[str, Any]  # in the case's dtype
    outputs: tuple[Tensor, ...]  # float64, complex128 or integers
    bounds: tuple[Tensor, ...]
    grad_outputs: tuple[Tensor, ...]  # in the case's dtype; empty where no gradients are compared
    gradients: dict[str, Tensor]
    gradient_bounds: dict[str, Tensor]
    dtypes: tuple[torch.dtype, ...] = ()  # of what a kernel returns and writes to
    names: tuple[str, ...] = ()  # of the outputs, as the contract has them
    dtype: torch.dtype = torch.float32  # of the case
    relations: Mapping[str, Relation] = field(default_factory=dict)  # by output, of those that have one
    # Where only some rows of a result are known ("output", "gradient of x"): which, and the shape of the whole.
    pieces: Mapping[str, Piece] = field(default_factory=dict)

    def compare_output(self, place: int, got: Any, outputs: Mapping[str, Any]) -> tuple[float, str]:
        """An output's worst share of its bound, and what is wrong. ``outputs`` are all of the result, by name."""
        name = self.names[place] if place < len(self.names) else ""
        got, wrong = self._known_rows(name, got)
        if wrong:
            return float("inf"), wrong
        want, bound = self.outputs[place], self.bounds[place]
        return compare_result(self.relation(place), got, want, bound, self.args, outputs)

    def compare_gradient(self, name: str, got: Any) -> tuple[float, str]:
        """The same of an input's gradient."""
        got, wrong = self._known_rows(gradient_of(name), got)
        return (float("inf"), wrong) if wrong else compare(got, self.gradients[name], self.gradient_bounds[name])

    def _known_rows(self, name: str, got: Any) -> tuple[Any, str]:
        """The rows of a result that are known, and what is wrong with its shape."""
        piece = self.pieces.get(name)
        if piece is None or not isinstance(got, Tensor):
            return got, ""
        if tuple(got.shape) != piece.shape:
            return got, f"shape {list(got.shape)}, expected {list(piece.shape)}"
        return piece.rows_of(got), ""

    def drawn_output(self, place: int, got: Tensor) -> Tensor:
        """Of an output the rows that are known."""
        piece = self.pieces.get(self.names[place])
        return got if piece is None else piece.rows_of(got)

    def without_pieces(self) -> Reference:
        """For results that are the rows which are known, and no more."""
        return replace(self, pieces={})

    def label(self, place: int, output: Tensor) -> str:
        """What an output's share is kept under: its name, and its dtype where that is another than the case's."""
        own = "" if output.dtype == self.dtype else f" in {str(output.dtype).removeprefix('torch.')}"
        return (self.names[place] if place < len(self.names) else f"output {place}") + own

    def relation(self, place: int) -> Relation | None:
        """How an output is judged, where not by its bound alone."""
        return self.relations.get(self.names[place]) if place < len(self.names) else None

    def positional(self, op: Op) -> tuple[Any, ...]:
        return tuple(self.args.get(name) for name in op.passes["forward"].names)


def gradient_of(name: str) -> str:
    """The name of an input's gradient, as contracts and shares have it."""
    return f"gradient of {name}"


def copy_tensors(value: Any) -> Any:
    """A copy of a tensor (or of a list of them); anything else as it is."""
    if isinstance(value, Tensor):
        return value.clone()
    return [copy_tensors(v) for v in value] if isinstance(value, (list, tuple)) else value


def flat_outputs(result: Any) -> tuple[Any, ...]:
    """A kernel's result as one flat tuple."""
    if isinstance(result, (tuple, list)):
        return tuple(leaf for item in result for leaf in flat_outputs(item))
    return (result,)


def device_of(op: Op, kernel: str) -> str:
    """Where a kernel's cases lie: on the GPU for its kernels, and on the CPU where those are interpreted."""
    return "cuda" if op.kernel(kernel).device == "cuda" and has_gpu() else "cpu"


def to_device(value: Any, device: str) -> Any:
    """A tensor (or a list of them) on a device; anything else as it is."""
    if isinstance(value, Tensor):
        return value.to(device)
    return [to_device(v, device) for v in value] if isinstance(value, (list, tuple)) else value


def _there(made: Iterable[Any]) -> tuple[Tensor, ...]:
    """What a definition made, without what stands for an argument that was not given."""
    return flat_outputs([part for part in made if part is not None])


def _output_names(contract: Contract, made: Any) -> tuple[str, ...]:
    """The name of each output of a definition, those in lists too."""
    named = zip(contract.outputs, made, strict=False)
    return tuple(n for n, part in named if part is not None for _ in flat_outputs(part))


def _relations_of(contract: Contract) -> dict[str, Relation]:
    """How outputs are judged, of those that are judged by more than their bounds."""
    return {name: result.relation for name, result in contract.results.items() if result.relation is not None}


def output_bounds(
    contract: Contract, args: Mapping[str, Any], exact: Mapping[str, Any], outputs: tuple[Tensor, ...],
    dtype: torch.dtype, **options: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The largest error of each output that a right kernel may make; ``args`` as the call takes them, ``exact`` the
    same in float64.

    A bound that takes ``given`` depends on the dtypes of single arguments (a float32 state beside 16-bit weights).
    """
    given = {"given": args} if "given" in inspect.signature(contract.bound).parameters else {}
    return flat_outputs(contract.bound(exact, outputs, dtype, **given, **options))


@ReferenceCache
def compute_reference(
    op: Op, case: Case, dtype: torch.dtype, seed: int = 0, device: str = "cpu", inner: str = "float32"
) -> Reference:  # fmt: skip
    """The reference of a case, computed on ``device``. The inputs follow from the op, case, dtype and ``seed``: every
    run and every device sees the same. ``inner``: for which kernels the bounds hold."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{op.name} {case.name} {dtype} {seed}".encode()))
    args = {name: to_device(value, device) for name, value in case.make(generator, dtype).items()}
    # Where tensors are made on the CPU anyway, the context would only look at each of a thousand calls of torch's.
    with contextlib.nullcontext() if torch.get_default_device() == torch.device(device) else torch.device(device):
        return _compute_reference(op, case, dtype, args, generator, {} if inner == "float32" else {"inner": inner})


def output_reference(op: Op, case: Case, dtype: torch.dtype, args: dict[str, Any], **bound_options: Any) -> Reference:
    """The outputs of a case with their bounds, without gradients."""
    if case.pieces:
        return _outputs_in_pieces(op, case, dtype, args, bound_options)
    contract = op.contract
    exact = {name: as_float64(copy_tensors(value)) for name, value in args.items()}
    with torch.no_grad():
        made = contract.reference(**exact)
        outputs = _there(made)
        names = _output_names(contract, made)
        given = {name: as_float64(value) for name, value in args.items()}  # an op in place has changed the others
        bounds = output_bounds(contract, args, given, outputs, dtype, **bound_options)
    relations = _relations_of(contract)
    return Reference(args, outputs, bounds, (), {}, {}, _promised_dtypes(op, args), names, dtype, relations)


def _positional(op: Op, args: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(args.get(name) for name in op.passes["forward"].names)


def _promised_dtypes(op: Op, args: Mapping[str, Any]) -> tuple[torch.dtype, ...]:
    given = _positional(op, args)
    promised = op.forward_shapes(given)
    return tuple(t.dtype for t in flat_outputs(results_of(op, promised, given)))


def _compute_reference(
    op: Op, case: Case, dtype: torch.dtype, args: dict[str, Any], generator: torch.Generator,
    bound_options: dict[str, Any]
) -> Reference:  # fmt: skip
    contract = op.contract
    expected = output_reference(op, case, dtype, args, **bound_options)
    if contract.gradient_bound is None or not case.gradients or not contract.differentiable:
        return expected
    if case.pieces:
        return _gradients_in_pieces(op, case, expected, generator, bound_options)
    exact = {name: as_float64(value) for name, value in args.items()}
    differentiable = [n for n in contract.differentiable if isinstance(exact.get(n), Tensor)]
    with torch.enable_grad():
        for name in differentiable:
            exact[name] = exact[name].clone().requires_grad_()
        results = _there(contract.reference(**exact))
        own = expected.dtypes or (dtype,) * len(results)
        flowing = [(o, its) for o, its in zip(results, own, strict=False) if o.requires_grad]
        used = [o for o, _ in flowing]
        grads = tuple(_drawn_flow(case, its, o.shape, generator, results[0].device) for o, its in flowing)
    gradients = _gradients(used, {n: exact[n] for n in differentiable}, grads)
    plain = {n: v.detach() if isinstance(v, Tensor) else v for n, v in exact.items()}
    with torch.no_grad():
        flows = tuple(as_float64(g) for g in grads)
        limits = _gradient_bounds(contract, args, plain, flows, gradients, dtype, bound_options)
    return replace(expected, grad_outputs=grads, gradients=gradients, gradient_bounds=limits)


def _gradient_bounds(
    contract: Contract, args: Mapping[str, Any], exact: Mapping[str, Any], grads: tuple[Tensor, ...],
    gradients: dict[str, Tensor], dtype: torch.dtype, options: Mapping[str, Any],
) -> dict[str, Tensor]:  # fmt: skip
    """As ``output_bounds``, of the gradients."""
    assert contract.gradient_bound is not None
    takes = inspect.signature(contract.gradient_bound).parameters
    given = {"given": args} if "given" in takes else {}
    try:
        found: dict[str, Tensor] = contract.gradient_bound(exact, grads, gradients, dtype, **given, **options)
    except IndexError as error:
        if grads:
            raise
        raise ValueError(
            f"no output of {contract.name}'s definition depends on {', '.join(gradients)} here: it must make its zeros "
            "of them (x[:0].sum(0)), or the case says gradients=False"
        ) from error
    return found


def _drawn_flow(case: Case, dtype: torch.dtype, shape: Any, generator: torch.Generator, device: torch.device) -> Tensor:
    """A gradient that flows in; into a complex output a complex one."""
    kind = torch.complex64 if dtype.is_complex else torch.float32
    drawn = torch.randn(shape, dtype=kind, generator=generator, device="cpu")
    return (drawn if case.flow is None else torch.full_like(drawn, case.flow)).to(dtype).to(device)


def _gradients(outputs: list[Tensor], leaves: Mapping[str, Tensor], grads: tuple[Tensor, ...]) -> dict[str, Tensor]:
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        outputs, list(leaves.values()), [as_float64(g) for g in grads], allow_unused=True
    )
    return {
        n: torch.zeros_like(leaf) if g is None else g.detach()
        for (n, leaf), g in zip(leaves.items(), found, strict=True)
    }


def follow_choice(op: Op, expected: Reference, outputs: Mapping[str, Any]) -> Reference:
    """The reference with the gradients of the choice that a kernel made, where several are right: what flows into a
    value flows on to the element that its index names. ``outputs`` are the kernel's, by name."""
    if not expected.gradients:
        return expected
    for name, relation in expected.relations.items():
        if isinstance(relation, EqualIndex):
            expected = _follow_equal(expected, relation, name, outputs[name].detach())
        if isinstance(relation, Equations) and relation.gradients is not None:
            made = {n: as_float64(t.detach()) for n, t in outputs.items() if isinstance(t, Tensor)}
            with torch.no_grad():
                gradients, bounds = relation.gradients(made, tuple(as_float64(g) for g in expected.grad_outputs))
            expected = replace(expected, gradients=gradients, gradient_bounds=bounds)
    chosen = {name: r for name, r in expected.relations.items() if isinstance(r, ChosenIndex)}
    if not chosen:
        return expected
    flows = [n for n, o in zip(expected.names, expected.outputs, strict=True) if is_inexact(o.dtype)]
    flow = dict(zip(flows, expected.grad_outputs, strict=True))
    exact = {name: as_float64(value) for name, value in expected.args.items()}
    found = {name: torch.zeros_like(gradient) for name, gradient in expected.gradients.items()}
    for name, relation in chosen.items():
        with torch.enable_grad():
            leaf = exact[relation.of].detach().requires_grad_()
            values = chosen_values(relation, leaf, outputs[name].detach(), exact)
            (gradient,) = torch.autograd.grad(values, leaf, as_float64(flow[relation.values]))
        found[relation.of] = found[relation.of] + gradient
    flowing = tuple(as_float64(g) for g in expected.grad_outputs)
    with torch.no_grad():
        bounds = _gradient_bounds(op.contract, expected.args, exact, flowing, found, expected.dtype, {})
    return replace(expected, gradients=found, gradient_bounds=bounds)


def _follow_equal(expected: Reference, relation: EqualIndex, name: str, places: Tensor) -> Reference:
    """The same where a result depends on the values of what was chosen alone: equal elements change places. Of a choice
    that is wrong the reference as it was."""
    of, want = expected.args[relation.of].detach(), expected.outputs[expected.names.index(name)]
    if places.dtype != torch.int64 or not bool(right_choices(of, -1, of.gather(-1, want), places).all()):
        return expected
    tables = (expected.gradients, expected.gradient_bounds)
    gradients, bounds = (t | {relation.of: moved_to_choice(t[relation.of], of, want, places)} for t in tables)
    return replace(expected, gradients=gradients, gradient_bounds=bounds)


# ---------------------------------------------------------------- results of which some rows are known


def _draw_rows(rows: int, wanted: int, name: str) -> Tensor:
    """The first and the last row, and some between, drawn anew for each result."""
    generator = torch.Generator("cpu").manual_seed(zlib.crc32(f"{name} {rows}".encode()))
    some = torch.randperm(rows, generator=generator, device="cpu")[: max(wanted - 2, 0)]
    ends = torch.tensor([0, rows - 1][:rows], device="cpu")
    rows_drawn: Tensor = torch.cat((some, ends)).unique()
    return rows_drawn


def _narrowed(args: Mapping[str, Any], names: tuple[str, ...], rows: Tensor) -> dict[str, Any]:
    return {n: v[rows.to(v.device)] if n in names else v for n, v in args.items()}


def _outputs_in_pieces(
    op: Op, case: Case, dtype: torch.dtype, args: dict[str, Any], bound_options: dict[str, Any]
) -> Reference:
    contract = op.contract
    outputs, bounds, pieces = [], [], {}
    promised = flat_outputs(op.forward_shapes(_positional(op, args)))
    for place, name in enumerate(contract.outputs):
        if name not in contract.pieces:
            raise ValueError(f"{contract.name} says no pieces of {name}: a case of it must be whole")
        piece = Piece(_draw_rows(promised[place].shape[0], case.pieces, name), tuple(promised[place].shape))
        part = _narrowed(args, contract.pieces[name], piece.rows)
        exact = {n: as_float64(v) for n, v in part.items()}
        with torch.no_grad():
            made = flat_outputs(contract.reference(**exact))
            limits = output_bounds(contract, part, exact, made, dtype, **bound_options)
        outputs.append(made[place])
        bounds.append(limits[place])
        pieces[name] = piece
    dtypes = tuple(t.dtype for t in promised)
    relations = _relations_of(contract)
    return Reference(
        args, tuple(outputs), tuple(bounds), (), {}, {}, dtypes, contract.outputs, dtype, relations, pieces
    )  # fmt: skip


def _gradients_in_pieces(
    op: Op, case: Case, expected: Reference, generator: torch.Generator, bound_options: dict[str, Any]
) -> Reference:
    """Each gradient that has pieces: of the call whose arguments are narrowed to them."""
    contract, args = op.contract, expected.args
    device = expected.outputs[0].device
    flows = {
        f"grad_{n}": _drawn_flow(case, expected.dtype, expected.pieces[n].shape, generator, device)
        for n in contract.outputs
    }
    gradients, limits, pieces = {}, {}, dict(expected.pieces)
    for name in contract.differentiable:
        of = gradient_of(name)
        if of not in contract.pieces or not isinstance(args.get(name), Tensor):
            continue
        pieces[of] = Piece(_draw_rows(args[name].shape[0], case.pieces, of), tuple(args[name].shape))
        part = _narrowed(args | flows, contract.pieces[of], pieces[of].rows)
        exact = {n: as_float64(v) for n, v in part.items()}
        grads = tuple(exact.pop(n) for n in flows)
        with torch.enable_grad():
            leaf = exact[name].clone().requires_grad_()
            made = _gradients(list(flat_outputs(contract.reference(**(exact | {name: leaf})))), {name: leaf}, grads)
        with torch.no_grad():
            found = _gradient_bounds(contract, part, exact, grads, made, expected.dtype, bound_options)
        gradients[name], limits[name] = made[name], found[name]
    return replace(
        expected, grad_outputs=tuple(flows.values()), gradients=gradients, gradient_bounds=limits, pieces=pieces
    )
