"""The process of a candidate, or of a reference that is timed beside it: it makes the callable, and calls it.

Nothing that it says is believed but the answers in the memory that it shares with the supervisor, and those only once
they were compared with the reference. So it does not matter what a candidate does to the code of this module.

| asked | done |
|---|---|
| ``prepare`` | tensors are made over the shared memory, whose contents are not there yet |
| ``go`` | the calls, in order; it says where their answers lie, each whole and in order of its elements |
| ``synchronize`` | a device that works by itself has nothing left to do, and says how long each call took it |
| ``state`` | what is set in the process otherwise than it was before the candidate was loaded |
| ``buffers`` | elements of a module's buffers as its calls have left them |
| ``muted`` | which of the candidate's own kernels ran, where they are garbled |
| ``garble`` | from now on what the candidate's own kernels write is garbled, where they are watched |
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.judge.inputs.draws import about_constants, no_ones_and_zeros
from kernelworks.judge.inputs.values import ForeignValue, given_leaves, gradients, leaves_by_path, unpack_value
from kernelworks.judge.process.ipc import hear, say
from kernelworks.judge.process.malloc import keep_freed
from kernelworks.judge.roles.device import Host
from kernelworks.judge.roles.held_tensors import elements_held, named_tensors
from kernelworks.judge.roles.operators import replaced_operators
from kernelworks.judge.roles.process_state import State
from kernelworks.machine import environment

__all__ = ["WEIGHT", "serve"]

MOST_TEXT = 4000
MOST_SAID = 20  # operators
MOST_RECENT = 4  # answers that are held beside those that the supervisor has drawn
WEIGHT = "the weight "  # how the lines begin that are about one
NUMBERS = {"bool": bool, "int64": int, "float64": float}  # what a number of Python's is as a tensor

# Taken before a candidate is loaded: an attribute of an instance stands in place of none of them.
_address, _strides, _is_negated, _is_conjugated = (
    Tensor.data_ptr, Tensor.stride, Tensor.is_neg, Tensor.is_conj
)  # fmt: skip
_with_own_sign, _with_own_part, _in_order, _copied = (
    Tensor.resolve_neg, Tensor.resolve_conj, Tensor.contiguous, Tensor.copy_
)  # fmt: skip
_contiguity = Tensor.is_contiguous
_Base: Any = torch._C.TensorBase
_needs_gradient, _shape, _writes = _Base.requires_grad.__get__, _Base.shape.__get__, _Base._version.__get__


class _WrongAnswer(Exception):
    """What came back is no answer of the problem's; the text says why."""


def _text(error: BaseException) -> str:
    """The error and where the candidate's own lines raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/kernelworks/judge/" not in f.filename]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:MOST_TEXT]}{where}"


class _Call:
    """One call's arguments, and what its answers must be: path, shape, dtype and strides of each."""

    def __init__(self, memory: Any, said: dict[str, Any]) -> None:
        inputs = [memory.tensor(spot) for spot in said["spots"]]
        self.args = [unpack_value(value, inputs.__getitem__) for value in said["inputs"]]
        self.inputs = [(one, _looks(one)) for one in inputs]
        self.wanted, self.hold = said["wanted"], bool(said["hold"])


def _looks(value: Tensor) -> tuple[Any, ...]:
    looks = type(value), _address(value), tuple(_shape(value)), _strides(value), _needs_gradient(value)
    return *looks, _writes(value)


def _another_input(call: _Call) -> str:
    """Which of a call's inputs is no longer the tensor that it was, "" where all are; then they are let go."""
    changed = [number for number, (one, was) in enumerate(call.inputs) if _looks(one) != was]
    call.inputs = []
    if not changed:
        return ""
    return f"input {changed[0]} has another class, shape, other memory or a gradient after the call, or was written to"


class Caller:
    """What was made, and what it is asked to do."""

    def __init__(self, papers: dict[str, Any], folder: Path) -> None:
        torch.set_num_threads(papers["threads"])
        # What is compiled with OpenMP's library and not torch's own copy of it asks the variable.
        environment.restore_variables(environment.variables() | {"OMP_NUM_THREADS": str(papers["threads"])})
        self.device: Host = papers["device"]
        self.on = "cuda" if self.device.name == "cuda" else "cpu"
        keep_freed()
        self.device.start()
        self.state = State()
        self.marks: list[tuple[Any, Any]] = []
        self.drained_s = 0.0  # what the device took after the latest answers
        self.kept: dict[int, list[Tensor]] = {}  # the latest answers
        self.held: dict[int, list[Tensor]] = {}  # those that the supervisor has drawn
        self.answers: list[list[Tensor]] = []  # of the latest calls, until it has read them
        self.seed: int | None = None  # of the last call
        self.own_elements = 0  # of all tensors that it holds
        self.constants = 0  # elements of weights that would be one number, and are not here
        self.memory: Any = None
        self.behind = (-1, 0)
        self.muted = None
        if papers["silent"]:
            from kernelworks.judge.inputs.garbled_kernels import KernelGarbler

            self.muted = KernelGarbler()
        self.fn = self._made(papers, folder)
        self.changed = self.state.changes()

    def _made(self, papers: dict[str, Any], folder: Path) -> Callable[..., Any]:
        problem, shape, candidate = papers["problem"], papers["shape"], papers["candidate"]
        given = torch.load(io.BytesIO(papers["given"]), weights_only=False)
        loader = importlib.import_module(problem.loader)
        if candidate is None:
            loaded = loader.load(problem, shape, folder)
            make = loaded.reference
        else:
            make = loader.load_candidate(problem, shape, candidate, folder).make
        torch.manual_seed(papers["weights"])
        with no_ones_and_zeros(papers["weights"]) if shape.weighted else contextlib.nullcontext():
            made = make(*(self.device.to_device(value) for value in given["init"]))
        if shape.weighted and isinstance(made, nn.Module):
            self.constants = about_constants(made, papers["weights"])
        self.own_elements = elements_held(made)
        self.weights = _take(made, given["state"])
        self.module = made if self.weights == "the reference's" else None
        self.given_weights = {} if self.module is None else _weights_of(made, given["state"])
        made = self.device.to_device(made)
        if papers["variant"] == "compiled":
            made = torch.compile(made)
        elif papers["variant"] == "ours":
            made = _with_ours(made, loaded)
        return made  # type: ignore[no-any-return]

    def set_memory(self, descriptor: int, size: int) -> None:
        """Other memory, from the next call on."""
        self.memory, self.behind = None, (descriptor, size)

    def prepare(self, said: dict[str, Any]) -> dict[str, Any]:
        if self.memory is None:
            self.memory = self.device.memory_of(*self.behind)
        self.how, self.answers = said["how"], []
        self.calls = [_Call(self.memory, one) for one in said["calls"]]
        self.number = int(said.get("number", 0))
        self.weights_asked = list(said.get("weights", ()))
        self.seed = int(said["seed"])
        torch.manual_seed(self.seed)
        return {"ready": True}

    def buffer_elements(self, asked: list[Any]) -> dict[str, Any]:
        """Elements of the buffers of these names, at these places."""
        own = named_tensors(self.fn, "_buffers") if isinstance(self.fn, nn.Module) else {}
        return {"buffers": [own[name].detach().double().reshape(-1)[at].tolist() for name, at in asked if name in own]}

    def weight_changes(self) -> list[str]:
        """Weights that are no longer the reference's, though nobody but its own calls had them since."""
        now = {} if self.module is None else named_tensors(self.module, "_parameters")
        same = {name: name in now and _is_same_weight(now[name], was) for name, was in self.given_weights.items()}
        lines = [f"{WEIGHT}{name} is another one than it was given" for name in same if not same[name]]
        return lines + [
            f"{WEIGHT}{name} has a gradient that nobody asked for" for name in same if _is_graded(now, name)
        ]

    def seed_changes(self) -> list[str]:
        """Drawing random numbers is anybody's right; where they begin is the user's."""
        same = self.seed is None or torch.initial_seed() == self.seed
        return [] if same else ["where torch's random numbers begin: set anew"]

    def drain_device(self) -> None:
        """Waits, as soon as the answer is said to be there, until a device that works by itself has nothing left to do:
        whoever asks later finds it idle. What goes wrong is said then."""
        begin = perf_counter()
        with contextlib.suppress(Exception):
            self.device.synchronize()
        self.drained_s = perf_counter() - begin

    def synchronize_device(self) -> dict[str, Any]:
        """How long a device that works by itself took after the answer until it was idle, and for each call."""
        self.device.synchronize()
        return {"took": self.drained_s, "device": self.device.elapsed_times(self.marks)}

    def go(self, control: socket.socket, nonce: str) -> dict[str, Any]:
        """Where its answers are, or what was wrong."""
        device, self.marks, touched = self.device, [], ""
        try:
            for number, call in enumerate(self.calls, self.number):
                begin = device.mark()
                found = self._found(number, call)
                self.marks.append((begin, device.mark()))
                touched = touched or _another_input(call)
                call.args = []  # what somebody hung on an input goes with it, while the clock runs
                values = [_whole(v, self.on, *one[1:]) for v, one in zip(found, call.wanted, strict=True)]
                self.answers.append(values)
                if self.how == "call":
                    self._hold(number, call, found)
            if device.apart:
                device.wait()  # as whoever uses it would
                say(control, {"returned": nonce})
                places, _ = hear(control)
                for values, spots in zip(self.answers, places["outs"], strict=True):
                    for value, spot in zip(values, spots, strict=True):
                        _copied(self.memory.tensor(spot), value)
            device.wait()
            where = [
                [[_address(v), _is_in_order(v)] for v in values] for values in self.answers
            ] if not device.apart else []  # fmt: skip
        except _WrongAnswer as error:
            return {"wrong": f"returned {error}"}
        except ForeignValue as error:
            return {"wrong": f"returned {error}"}
        except LookupError as error:
            if self.how == "backward":
                return {"wrong": f"has none: {error}"}
            return {"wrong": f"raised {_text(error)}"}
        except Exception as error:  # the candidate's
            return {"wrong": f"raised {_text(error)}"}
        return {"wrong": "", "at": where, "touched": touched}

    def _found(self, number: int, call: _Call) -> list[Any]:
        """A call's answers, in the order in which they are wanted."""
        if self.how == "call":
            return _by_wanted_paths(leaves_by_path(self.fn(*call.args)), call.wanted)
        if self.how == "backward":
            return self._gradients(*call.args)
        if self.how == "graph":  # as for a backward, which is not run
            with torch.enable_grad():
                return _by_wanted_paths(leaves_by_path(self.fn(*given_leaves(call.args))), call.wanted)
        if self.how == "again":
            return self.held.get(number, [])
        return next(iter(self.kept.values()))  # an answer that costs nothing

    def _hold(self, number: int, call: _Call, found: list[Tensor]) -> None:
        self.kept[number] = found
        if call.hold:
            self.held[number] = found
        while len(self.kept) > MOST_RECENT:
            self.kept.pop(next(iter(self.kept)))

    def _gradients(self, *args: Any) -> list[Tensor]:
        *values, flows = args
        weights = named_tensors(self.fn, "_parameters") if isinstance(self.fn, nn.Module) else {}
        return gradients(self.fn, values, flows, [weights[name] for name in self.weights_asked])


def _take(made: Any, state: dict[str, Tensor]) -> str:
    """Gives a module the reference's weights where names and shapes are the same; else it has those of its seed."""
    if not isinstance(made, nn.Module):
        return "none"
    own = made.state_dict()
    if not own:
        return "none"
    if own.keys() == state.keys() and all(own[k].shape == v.shape for k, v in state.items()):
        made.load_state_dict(state)
        return "the reference's"
    return "drawn from the same seed"


def _weights_of(made: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: state[name] for name in named_tensors(made, "_parameters") if name in state}


def _is_same_weight(now: Tensor, was: Tensor) -> bool:
    """The same numbers, or NaN in both, in the same precision."""
    if now.shape != was.shape or now.dtype != was.dtype:
        return False
    its = now.detach().to(was.device)
    return bool(((its == was) | ((its != its) & (was != was))).all())


def _is_graded(weights: dict[str, Tensor], name: str) -> bool:
    return name in weights and weights[name].grad is not None


def _with_ours(made: Any, loaded: Any) -> Any:
    """What a problem is computed by with our kernels, those that are verified here and listed first: no tuning record
    of this machine's is seen in a process of the judge's, and without one torch's functions would run."""
    environment.restore_variables(environment.variables() | {"KERNELWORKS_CHOOSE": "listed"})
    if hasattr(loaded, "ours"):  # of a format whose problems are ops
        return loaded.ours()
    if isinstance(made, nn.Module):
        from kernelworks.nn.swap import swap

        swap(made, verbose=False)
    return made


def _by_wanted_paths(found: dict[str, Any], wanted: list[Any]) -> list[Any]:
    """Values where the reference has its own. Raises _WrongAnswer."""
    paths = [path for path, *_ in wanted]
    if len(found) != len(paths):
        raise _WrongAnswer(f"{len(found)} values, not {len(paths)}")
    if paths != [*found] and None not in paths:
        said, must = (", ".join(f"value{path}" for path in some) for some in (found, paths))
        raise _WrongAnswer(f"{said}, where the reference returns {must}")
    return [*found.values()]


def _whole(value: Any, on: str, shape: list[int], dtype: str, strides: list[int]) -> Tensor:
    """The answer with each element in its place in memory: in order, or strided as the reference's is. Raises
    _WrongAnswer."""
    if not isinstance(value, Tensor):
        if NUMBERS.get(dtype) is not type(value) or shape:
            raise _WrongAnswer(f"a {type(value).__name__}, not a tensor of {dtype}")
        value = torch.tensor(value, dtype=getattr(torch, dtype))
    if type(value) is not Tensor and type(value) is not nn.Parameter:  # a class may say that it equals another
        raise _WrongAnswer(f"a {type(value).__name__}, which is no plain tensor")
    if value.device.type != on and (value.dim() or on == "cpu"):
        raise _WrongAnswer(f"a tensor on {value.device.type}, not on {on}")
    if value.layout is not torch.strided:
        raise _WrongAnswer(f"a tensor of {value.layout}")
    if [*value.shape] != shape:
        raise _WrongAnswer(f"the shape {list(value.shape)}, not {shape}")
    if value.dtype != getattr(torch, dtype):
        raise _WrongAnswer(f"{value.dtype}, not torch.{dtype}")
    if _is_negated(value):
        value = _with_own_sign(value)
    if _is_conjugated(value):
        value = _with_own_part(value)
    return value if [*_strides(value)] == strides else _in_order(value)


def _is_in_order(value: Tensor) -> bool:
    return bool(_contiguity(value))


def _or_trouble(step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a step of the judge's own gives, or why it did not work: an error of a device's comes with whatever is asked
    of it next."""
    try:
        return step()
    except Exception as error:
        return {"trouble": _text(error)}


def serve(control: socket.socket, papers: dict[str, Any], folder: Path) -> None:
    """Answers until the other end is gone."""
    try:
        caller = Caller(papers, folder)
    except BaseException as error:  # a candidate may raise anything, SystemExit too
        say(control, {"raised": _text(error)})
        return
    made = {"weights": caller.weights, "constants": caller.constants, "elements": caller.own_elements}
    say(control, {"loaded": True, "changed": caller.changed, **made})
    while True:
        said, descriptors = hear(control)
        do = said["do"]
        if do == "go":
            with torch.no_grad():
                found = caller.go(control, said["nonce"])
            say(control, {"nonce": said["nonce"], **found})
            if caller.device.apart:
                caller.drain_device()
        elif do == "memory":
            caller.set_memory(descriptors[0], int(said["size"]))
        elif do == "synchronize":
            say(control, _or_trouble(caller.synchronize_device))
        elif do == "prepare":
            say(control, _or_trouble(functools.partial(caller.prepare, said)))
        elif do == "garble":
            if caller.muted is not None:
                caller.muted.garbling = True
            say(control, {})
        elif do == "buffers":
            say(control, _or_trouble(functools.partial(caller.buffer_elements, said["of"])))
        elif do == "state":
            state = caller.state
            changed = [*state.changes(), *caller.seed_changes(), *state.reachable_changes()[:MOST_SAID]]
            changed += [*replaced_operators()[:MOST_SAID], *caller.weight_changes()[:MOST_SAID]]
            say(control, {"changed": changed})
        elif do == "muted":
            muted = caller.muted
            said = {"muted": muted.called, "working": muted.working} if muted else {"muted": [], "working": []}
            say(control, said)
