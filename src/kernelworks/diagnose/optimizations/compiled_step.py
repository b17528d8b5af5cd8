"""``torch.compile`` of a training step as a whole, as a user would decorate it: of the function that zeroes gradients,
calls the model, runs backward and steps the optimizer.

A module that is compiled by itself leaves the loss and the optimizer to eager torch. Of the whole step dynamo compiles
the optimizer too: its formula for all parameters in a few kernels, where torch's own step passes over the parameters
once for each term.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from kernelworks.diagnose.optimization import Change, CombinedChange, Promise, Rejected, Scene, Site
from kernelworks.diagnose.optimizations.program_trial import in_turns
from kernelworks.diagnose.optimizations.trial import draws
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.verify.training_steps import same_steps

__all__ = ["STEP", "STEP_TOUCHES", "VERIFIED_AGAINST", "function_at", "predict_step", "step_function", "step_seconds"]

STEP = "step"  # the option of a candidate; its value is the type of what steps in it
STEP_TOUCHES = frozenset({"ops", "optimizer"})
MOST_CALLS = 4  # of one module in a run: a loop over batches is not traced as one step
ON_HOST_S, ON_GPU_S = 0.7, 0.1  # to compile the step of one parameter: a GPU takes them together
VERIFIED_AGAINST = "the program's own steps"


def step_function(scene: Scene) -> Function | None:
    """The program's function, if it is a training step that a compiler may take: its optimizers last, and it calls each
    module a few times."""
    entry = scene.program.entry if scene.program is not None else None
    if entry is None or not scene.optimizers or max(scene.roots.calls.values(), default=0) > MOST_CALLS:
        return None
    fn = entry.fn
    if not isinstance(fn, FunctionType) or hasattr(fn, "_torchdynamo_orig_callable"):
        return None  # a method, or the program has compiled it
    made: Function = scene.keep("the training step", lambda: Function(fn, entry=entry))
    return made


def function_at(scene: Scene, site: Site) -> Any:
    """The function of a site: the step that was found once in a search, another process looks it up."""
    step = step_function(scene)
    return step if step is not None and (step.of, step.path) == (site.root, site.path) else scene.at(site)


def step_seconds(scene: Scene) -> float:
    """Seconds to compile the optimizers' steps."""
    stepped = sum(len(group["params"]) for optimizer in scene.optimizers for group in optimizer.param_groups)
    return stepped * (ON_GPU_S if scene.on_gpu else ON_HOST_S)


def predict_step(scene: Scene, change: Change) -> Promise:
    """Runs the program with its step compiled, and compares what some steps make of the parameters. Raises Rejected if
    they differ, or cannot be compared: no module's answers show what a step does."""
    found = in_turns(scene, change)
    if found.saves > 0:
        compared = change.random if change.random is not None and draws(scene) else change
        steps = same_steps(scene, CombinedChange((*scene.taken, compared)))
        if steps is None:
            raise Rejected("its steps cannot be compared: the program does not repeat them, or memory is short")
        if not steps.agrees:
            raise Rejected(f"the program's training steps differ with it ({steps.note})")
    return Promise(found.saves, found.first_s, how="the program was run with it, and its steps compared")
