"""Every row of every op against float64, on every case of its contract. Generated from the rows."""

from __future__ import annotations

import pytest
import torch

from kernelworks.dispatch import Op
from kernelworks.prove.parity import parities
from rows import label, runnable_rows


@pytest.fixture(autouse=True)
def poisoned_memory():
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty comes filled with NaN
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("op", "row"), runnable_rows(), ids=label)
def test_row_keeps_the_contract(op: Op, row: str) -> None:
    # The torch row is what the user has today: it is compared where torch is right, and never needs a certificate.
    failures, compared = [], 0
    for case in op.contract.cases:
        for dtype in case.dtypes:
            for parity in parities(op, row, case, dtype):
                compared += 1
                if not parity.ok:
                    failures.append(
                        f"{parity.pass_} {parity.case} {parity.dtype}: {parity.message}\n{parity.reproduce}"
                    )
    assert compared > 20
    if row != "torch":
        assert not failures, f"{len(failures)} of {compared}:\n" + "\n".join(failures[:10])
