"""``python -m kernelworks`` is the ``kernelworks`` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The entry point of the command. Ctrl-C ends it without a traceback while it is still being imported."""
    try:
        from kernelworks.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("kernelworks: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
