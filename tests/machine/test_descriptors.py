"""Waiting for descriptors, whatever their number."""

from __future__ import annotations

import os
import resource
import socket
import time

import pytest

from kernelworks.machine.descriptors import is_readable

HIGH = 2000  # beyond what ``select.select`` takes


@pytest.mark.parametrize("number", [0, HIGH])
def test_it_tells_what_can_be_read_and_what_has_ended(number: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[0] <= HIGH:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(2 * HIGH, limits[1])), limits[1]))
    ours, theirs = socket.socketpair()
    at = os.dup(ours.fileno())
    if number:
        os.dup2(at, number)
        os.close(at)
        at = number
    begin = time.monotonic()
    assert not is_readable(at) and not is_readable(at, 0.05)
    assert time.monotonic() - begin >= 0.05
    theirs.sendall(b"?")
    assert is_readable(at) and is_readable(at, None) and is_readable(ours)
    os.read(at, 1)
    assert not is_readable(at)
    theirs.close()
    assert is_readable(at, None)  # its end
    os.close(at)
    with pytest.raises(ValueError, match="is closed"):
        is_readable(at)
    ours.close()
