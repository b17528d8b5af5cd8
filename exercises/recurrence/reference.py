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


def taken_for_channels(x, decay, state, steps, channels):
    """x, decay and y as channels x steps."""
    found = run(x.reshape(channels, steps).T, decay.reshape(channels, steps).T, state)
    return {"state": found["state"], "y": found["y"].T.reshape(steps, channels)}


def through_channels(x, decay, state, steps, channels):
    found, h = {"state": np.zeros(channels), "y": np.zeros((steps, channels))}, state[0]
    for c in range(channels):
        one = run(x[:, c], decay[:, c], h)
        found["y"][:, c], h = one["y"], one["state"]
        found["state"][c] = h
    return found


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
    "x and decay are taken for channels x steps: step t of channel c is at t * channels + c": taken_for_channels,
    "the state goes on from channel to channel": through_channels,
    "the input is multiplied by 1 - decay: it is added as it is": lambda x, decay, state, steps, channels: run(
        x * (1 - decay), decay, state
    ),
    "the input is not added": lambda x, decay, state, steps, channels: run(0 * x, decay, state),
    "the decay is that of the step before": lambda x, decay, state, steps, channels: run(
        x, np.concatenate((decay[:1], decay[:-1])), state
    ),
    "the new state is added to the old one: write it by = and not by +=": lambda x, decay, state, steps, channels: (
        lambda found: found | {"state": state + found["state"]}
    )(run(x, decay, state)),
}
