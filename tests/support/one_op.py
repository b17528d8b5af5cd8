"""Which tests are those of one op, for ``pytest --op NAME``: it is given to them, or their file is named after it."""

from __future__ import annotations

import re

__all__ = ["asked", "is_test_of", "lists_ops"]


class Asked:
    """What this run of the tests was told, for files that list ops and kernels as they are read."""

    every_kernel = False  # with ``--all`` or ``--op``; else those that `op_kernels.is_asked` tells


asked = Asked()

# What a file of tests reads that goes through ops.
LISTS = re.compile(r"\b(OPS|ALL_OPS|ALL_NAMES|OP_PACKAGES|CALLS|op_kernels|torch_calls|torch_signatures)\b")


def lists_ops(text: str) -> bool:
    """Whether a file may hold tests of every op, or is about some."""
    return LISTS.search(text) is not None


def is_test_of(op: str, file: str, test: str) -> bool:
    """Whether a test of that name, in the file of that stem, is given the op or is in a file named after it."""
    if file == f"test_{op}" or file.startswith(f"test_{op}_"):
        return True
    given = test.partition("[")[2]
    return re.search(rf"(?<![a-zA-Z0-9_]){re.escape(op)}(?![a-zA-Z0-9_])", given) is not None
