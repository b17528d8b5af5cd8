"""A run under the profiler is read when somebody asks: until then it tells its seconds, and whether a device worked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernelworks.profile.recording import Recording, recording_of
from kernelworks.profile.trace import RUN_ANNOTATION


@dataclass
class Event:
    """As the profiler tells it."""

    label: str
    device: str = "DeviceType.CPU"
    begun: int = 0
    ended: int = 0
    annotates: bool = False

    def name(self) -> str:
        return self.label

    def device_type(self) -> str:
        return self.device

    def start_ns(self) -> int:
        return self.begun

    def end_ns(self) -> int:
        return self.ended

    def is_user_annotation(self) -> bool:
        return self.annotates


@dataclass
class Results:
    found: list[Event]

    def events(self) -> list[Event]:
        return self.found


def recording(*events: Event) -> Recording:
    nothing: Any = None
    return Recording(Results(list(events)), [], None, None, nothing, True)


def test_a_recording_of_a_run_is_read_once_it_is_asked_for() -> None:
    x = torch.ones(8)
    made = recording_of(lambda: torch.relu(x + x))
    assert made.seconds > 0 and not made.works_on_device
    assert [call.name for call in made.read().calls] == ["aten::add", "aten::relu"]


@pytest.mark.parametrize(
    ("event", "works"),
    [
        (Event("elementwise_kernel", "DeviceType.CUDA"), True),
        (Event("Memcpy HtoD (Pageable -> Device)", "DeviceType.CUDA"), True),
        (Event("Context Sync", "DeviceType.CUDA"), False),  # it waits
        (Event(RUN_ANNOTATION, "DeviceType.CUDA", annotates=True), False),
        (Event("cudaLaunchKernel"), False),  # the driver's call alone
    ],
)
def test_a_device_works_if_it_ran_a_kernel_or_a_copy(event: Event, works: bool) -> None:
    assert recording(Event(RUN_ANNOTATION, begun=5, ended=10), event).works_on_device is works


def test_its_seconds_are_those_of_the_run_on_the_host() -> None:
    on_device = Event(RUN_ANNOTATION, "DeviceType.CUDA", 0, 10**12, annotates=True)
    assert recording(on_device, Event(RUN_ANNOTATION, begun=10**9, ended=3 * 10**9)).seconds == 2.0
    assert recording().seconds == 0.0
