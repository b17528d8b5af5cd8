"""What the model of time says of each line of the ops' record beside what it took: needs no GPU.

    python benchmarks/h200_times.py [--only attention,linear] [--record FILE] [--machine FILE] [--terms]

The predictions are made anew from the shapes on record, the measured peaks of ``h200-machine.json`` and the model as it
lies here (``measure/roofline/time_model.py``, the op packages' ``times.toml``), of whatever source the figures are.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kernelworks.measure.roofline.kernel_time import compare_model
from kernelworks.records import GpuPeaks, from_json
from kernelworks.report import expectations

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="these ops alone")
    parser.add_argument("--record", type=Path, default=RESULTS / "h200-ops.json")
    parser.add_argument("--machine", type=Path, default=RESULTS / "h200-machine.json")
    parser.add_argument("--terms", action="store_true", help="what each prediction is made of, in microseconds")
    given = parser.parse_args()
    only = set(filter(None, given.only.split(",")))
    record = json.loads(given.record.read_text(encoding="utf-8"))
    known = from_json(GpuPeaks, json.dumps(json.loads(given.machine.read_text(encoding="utf-8"))["peaks"]))
    lines = compare_model((row for row in record["rows"] if not only or row["op"] in only), known)
    for line in lines:
        mark = " " if abs(line.off) <= expectations.NEAR_SHARE else "*"
        terms = "  ".join(f"{name} {1e6 * s:.1f}" for name, s in line.terms.items() if s) if given.terms else ""
        print(
            f"{line.case:54s} {line.kernel:22s} bound {line.bound_us:8.1f}  predicted {line.expected_us:8.1f}  "
            f"took {line.measured_us:8.1f} us {100 * line.off:+5.0f}%{mark} {terms or line.bound_by}"
        )
    print(expectations.summary(lines))


if __name__ == "__main__":
    main()
