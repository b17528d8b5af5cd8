"""Waiting for descriptors, whatever their number."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from kernelworks.machine.descriptors import is_readable

HIGH = 1024  # from which on ``select.select`` takes none


@pytest.fixture(params=[0, HIGH])
def least(request: pytest.FixtureRequest) -> Iterator[int]:
    """The least number of a descriptor, as far as this machine lets a process have so many."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2 * HIGH if limits[1] == resource.RLIM_INFINITY else min(2 * HIGH, limits[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], most), limits[1]))
    yield request.param if most > HIGH else 0
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_it_tells_what_can_be_read_and_what_has_ended(least: int) -> None:
    ours, theirs = socket.socketpair()
    at = fcntl.fcntl(ours, fcntl.F_DUPFD, least)
    assert at >= least
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
