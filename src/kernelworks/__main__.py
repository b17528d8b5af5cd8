"""``python -m kernelworks`` is the ``kernelworks`` command."""

from __future__ import annotations

from kernelworks.cli import main

main()
