"""Puts the cache's certificates into the package: ``python benchmarks/certified.py`` after ``kernelworks verify ...``.

Every kind of machine that the cache knows: its whole verifications of the kernels as they are take the place of what
shipped. Of every kind that ships, what was verified of another source than the one at hand is left out.

`make docs` after it: docs/reference/op-records.md tells which kernels are verified where.
"""

from __future__ import annotations

import argparse

import kernelworks  # noqa: F401  fills OPS
from kernelworks.dispatch import certificates
from kernelworks.dispatch.certificates import Certificate
from kernelworks.dispatch.op import OPS
from kernelworks.machine import environment


def current(certificate: Certificate) -> bool:
    """Whether it is a whole verification, and of the kernel as it is."""
    kernels = {kernel.name: kernel for kernel in OPS[certificate.op].kernels} if certificate.op in OPS else {}
    kernel = kernels.get(certificate.kernel)
    return kernel is not None and not certificate.verified_on and certificates.is_current(certificate, kernel)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    cache = environment.cache_dir("certificates")
    for kind in sorted({*certificates.shipped_kinds(), *(p.name for p in cache.glob("*") if p.is_dir())}):
        held = certificates._shipped(kind)
        cached = (certificates._cached(kind, *p.stem.split(".", 1)) for p in sorted((cache / kind).glob("*.json")))
        whole = (c for c in cached if isinstance(c, Certificate) and certificates._within(c) and current(c))
        made = {(c.op, c.kernel): c for c in whole}
        kept = {at: c for at, c in held.items() if current(c)}
        if kept | made != held:
            path = certificates.write_shipped((kept | made).values(), kind)
            print(
                f"{path}: {len(kept | made)} kernels, {len(made)} of this cache, {len(held) - len(kept)} stale left out"
            )


if __name__ == "__main__":
    main()
