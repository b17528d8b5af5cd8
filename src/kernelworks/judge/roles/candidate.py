"""The process of a candidate, or of a reference that is timed beside it: it makes the callable, and calls it.

Nothing that it says is believed but the answers in the memory that it shares with the supervisor, and those only once
they were compared with the reference. So it does not matter what a candidate does to the code of this module.

| asked | done |
|---|---|
| ``prepare`` | tensors are made over the shared memory, whose contents are not there yet |
| ``go`` | the calls, in order; each answer is copied to its place as soon as it is there |
| ``synchronize`` | a device that works by itself has nothing left to do, and says how long each call took it |
| ``state`` | what is set in the process otherwise than it was before the candidate was loaded |
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
from kernelworks.judge.inputs.values import ForeignValue, gradients, leaves, unpack_value
from kernelworks.judge.process.ipc import hear, say
from kernelworks.judge.process.malloc import keep_freed
from kernelworks.judge.roles.device import Host
from kernelworks.judge.roles.process_state import State
from kernelworks.machine import environment

__all__ = ["serve"]

MOST_TEXT = 4000
MOST_SAID = 20  # operators
MOST_HELD_ANSWERS = 4  # answers that are held, to be asked for again


def _text(error: BaseException) -> str:
    """The error and where the candidate's own lines raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/kernelworks/judge/" not in f.filename]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:MOST_TEXT]}{where}"


class _Call:
    """One call's arguments and the places of its answers."""

    def __init__(self, memory: Any, said: dict[str, Any]) -> None:
        inputs = [memory.tensor(spot) for spot in said["spots"]]
        self.args = [unpack_value(value, inputs.__getitem__) for value in said["inputs"]]
        self.outs = [memory.tensor(spot) for spot in said["outs"]]


class Caller:
    """What was made, and what it is asked to do."""

    def __init__(self, papers: dict[str, Any], folder: Path) -> None:
        torch.set_num_threads(papers["threads"])
        # What is compiled with OpenMP's library and not torch's own copy of it asks the variable.
        environment.restore_variables(environment.variables() | {"OMP_NUM_THREADS": str(papers["threads"])})
        self.device: Host = papers["device"]
        keep_freed()
        self.device.start()
        self.state = State()
        self.marks: list[tuple[Any, Any]] = []
        self.kept: dict[int, list[Tensor]] = {}
        self.seed: int | None = None  # of the last call
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
        self.weights = _take(made, given["state"])
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
        self.how = said["how"]
        self.calls = [_Call(self.memory, one) for one in said["calls"]]
        self.number = int(said.get("number", 0))
        self.weights_asked = list(said.get("weights", ()))
        self.seed = int(said["seed"])
        torch.manual_seed(self.seed)
        return {"ready": True}

    def seed_changes(self) -> list[str]:
        """Drawing random numbers is anybody's right; where they begin is the user's."""
        same = self.seed is None or torch.initial_seed() == self.seed
        return [] if same else ["where torch's random numbers begin: set anew"]

    def synchronize_device(self) -> dict[str, Any]:
        """How long a device that works by itself takes until it has nothing left to do, and took for each call."""
        begin = perf_counter()
        self.device.synchronize()
        return {"took": perf_counter() - begin, "device": self.device.elapsed_times(self.marks)}

    def go(self) -> str:
        """What was wrong, where something was."""
        device, self.marks = self.device, []
        try:
            for number, call in enumerate(self.calls, self.number):
                begin = device.mark()
                if self.how == "call":
                    found = leaves(self.fn(*call.args))
                elif self.how == "backward":
                    found = self._gradients(*call.args)
                elif self.how == "again":
                    found = list(self.kept.get(number, ()))
                else:  # an answer that costs nothing but its delivery
                    found = list(next(iter(self.kept.values())))
                self.marks.append((begin, device.mark()))
                wrong = _delivered(found, call.outs)
                if wrong:
                    return wrong
                if self.how == "call":
                    self.kept[number] = found
                    while len(self.kept) > MOST_HELD_ANSWERS:
                        self.kept.pop(next(iter(self.kept)))
            device.wait()
        except ForeignValue as error:
            return f"returned {error}"
        except LookupError as error:
            if self.how == "backward":
                return f"has none: {error}"
            return f"raised {_text(error)}"
        except Exception as error:  # the candidate's
            return f"raised {_text(error)}"
        return ""

    def _gradients(self, *args: Any) -> list[Tensor]:
        *values, flows = args
        weights = dict(self.fn.named_parameters()) if isinstance(self.fn, nn.Module) else {}
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


def _delivered(found: list[Any], outs: list[Tensor]) -> str:
    """Copies answers to their places; what is wrong with them, where something is."""
    if len(found) != len(outs):
        return f"returned {len(found)} values, not {len(outs)}"
    for value, out in zip(found, outs, strict=True):
        if not isinstance(value, Tensor):
            value = torch.as_tensor(value)
        if type(value) not in (Tensor, nn.Parameter):
            return f"returned a {type(value).__name__}, which is no plain tensor"
        if value.device.type != out.device.type and (value.dim() or out.device.type == "cpu"):
            return f"returned a tensor on {value.device.type}, not on {out.device.type}"
        if value.shape != out.shape:
            return f"returned the shape {list(value.shape)}, not {list(out.shape)}"
        if value.dtype != out.dtype:
            return f"returned {value.dtype}, not {out.dtype}"
        if value.numel() and value.untyped_storage().data_ptr() == out.untyped_storage().data_ptr():
            return "returned the place that its answer is copied to: it has looked for it"
        out.copy_(value)
    return ""


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
    made = {"weights": caller.weights, "constants": caller.constants}
    say(control, {"loaded": True, "changed": caller.changed, **made})
    while True:
        said, descriptors = hear(control)
        do = said["do"]
        if do == "go":
            with torch.no_grad():
                wrong = caller.go()
            say(control, {"nonce": said["nonce"], "wrong": wrong})
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
        elif do == "state":
            changed = [*caller.state.changes(), *caller.seed_changes(), *caller.state.replaced_operators()[:MOST_SAID]]
            say(control, {"changed": changed})
        elif do == "muted":
            muted = caller.muted
            said = {"muted": muted.called, "working": muted.working} if muted else {"muted": [], "working": []}
            say(control, said)
