"""A linear recurrence of each channel."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, TINY, Case, Output, State, random


def case(steps, channels, about, **more):
    draw = random(10 * steps + channels)
    x = draw.standard_normal((steps, channels)).astype(np.float32)
    decay = draw.uniform(0.5, 1, (steps, channels)).astype(np.float32)
    state = draw.standard_normal(channels).astype(np.float32)
    arrays = {"x": x, "decay": decay, "state": State(state), "y": Output((steps, channels))}
    return Case(about, {**arrays, "steps": steps, "channels": channels}, **more)


def cases():
    yield case(6, 4, "6 steps, 4 channels")
    yield case(1, 3, "one step")
    yield case(13, 1, "13 steps, one channel")
    yield case(40, 17, "40 steps, 17 channels")


def timed():
    steps, channels = 128, 256
    count = steps * channels
    return case(steps, channels, f"{steps} steps, {channels} channels", flop=2 * count, bytes=12 * count)


def run(x, decay, state, *, input_decayed=False):
    found = np.zeros(x.shape)
    for t in range(len(x)):
        state = decay[t] * state + x[t] * (decay[t] if input_decayed else 1)
        found[t] = state
    return {"state": state, "y": found}


def reference(x, decay, state, steps, channels):
    return run(x, decay, state)


def bound(x, decay, state, steps, channels):
    sizes = run(np.abs(x), decay, np.abs(state))["y"]
    limits = run(3 * HALF_ULP * sizes, decay, 0 * state)
    return {name: value + TINY for name, value in limits.items()}


def from_zero(x, decay, state, steps, channels):
    return run(x, decay, 0 * state)


def late(x, decay, state, steps, channels):
    found = run(x, decay, state)
    return {"state": found["state"], "y": np.concatenate((state[None], found["y"][:-1]))}


MISTAKES = {
    "the state begins with 0 in each call, and stays as it was": lambda x, decay, state, steps, channels: (
        from_zero(x, decay, state, steps, channels) | {"state": state}
    ),
    "it begins with 0: the state of the call before is lost": from_zero,
    "state stays as it was": lambda x, decay, state, steps, channels: run(x, decay, state) | {"state": state},
    "the output is the state of before the step": late,
    "the input is decayed too": lambda x, decay, state, steps, channels: run(x, decay, state, input_decayed=True),
    "the decay of step 0 is used in every step": lambda x, decay, state, steps, channels: run(
        x, np.broadcast_to(decay[0], decay.shape), state
    ),
}
