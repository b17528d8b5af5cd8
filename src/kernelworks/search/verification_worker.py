"""The whole verification of a kernel, in the process of a copy of this package.

``python -m kernelworks.search.verification_worker OP KERNEL``.

Writes ``{"at": ...}`` at each step and the verification at the end, with what a certificate needs of the kernel. Writes
no certificate.
"""

from __future__ import annotations

import json
import sys

from kernelworks.dispatch.op import OPS
from kernelworks.records import to_json
from kernelworks.verify import verify


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    op, kernel = sys.argv[1:]
    (verification,) = verify(op, kernel, write=False, progress=lambda line: _say(at=line))
    found = OPS[op].kernel(kernel)
    _say(verification=json.loads(to_json(verification)), hash=found.hash(), toolchain=found.toolchain())


if __name__ == "__main__":
    main()
