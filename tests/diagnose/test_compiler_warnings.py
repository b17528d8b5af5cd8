"""What torch's compilers warn of while a fix tries them is no news to whoever runs the program."""

from __future__ import annotations

import logging

import pytest

from kernelworks.diagnose.fix.compiler_warnings import LOGGERS, without_compiler_warnings


def test_errors_alone_are_told_within_and_what_the_user_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = map(logging.getLogger, LOGGERS)
    levels = [logger.level for logger in (first, *others)]
    monkeypatch.setattr(first, "level", logging.DEBUG)  # as TORCH_LOGS does
    inner = logging.getLogger(f"{LOGGERS[1]}.codecache")
    with without_compiler_warnings():
        assert first.level == logging.DEBUG
        assert inner.isEnabledFor(logging.ERROR) and not inner.isEnabledFor(logging.WARNING)
    monkeypatch.undo()
    assert [logger.level for logger in (first, *others)] == levels
