"""What the GPU's kernels do with an id outside the table, tried in Triton's interpreter."""

from __future__ import annotations

import forked

PROGRAM = """
import torch
from kernelworks.dispatch.op import OPS
from kernelworks import ops
from kernelworks.ops.lookup.embedding import triton as kernel

weight = torch.randn(4, 8)
ids = torch.tensor([[0, 1], [7, 2]])
out = torch.zeros(2, 2, 8)
try:
    kernel.forward(ids, weight, out)
except IndexError as error:
    print(error)
print(bool(out[1, 0].isnan().all()), bool((out[1, 1] == weight[2]).all()))
kept, words = kernel._faults("cpu")
words[0], words[1] = 3, 4  # as a GPU leaves it after the call has returned
try:
    kernel.forward(ids[:1], weight)
except IndexError as error:
    print(error)
print(bool((kernel.forward(ids[:1], weight) == weight[ids[:1]]).all()))
grad = torch.ones(2, 2, 8)
print(kernel.backward(grad, ids, weight, [True])[:, 0].tolist())
"""


def test_an_id_outside_the_table_is_reported_and_its_row_is_nan() -> None:
    done = forked.python(code=PROGRAM, TRITON_INTERPRET="1")
    assert done.stdout.splitlines() == [
        "ids must be in [0, 4), weight's rows; this call had another at position 2",
        "True True",
        "ids must be in [0, 4), weight's rows; an earlier call had another at position 2",
        "True",
        "[1.0, 1.0, 1.0, 0.0]",
    ], done.stdout + done.stderr


BAGS = """
import torch
from kernelworks.ops.linalg.csr_matmul import triton as sparse
from kernelworks.ops.lookup.embedding_bag import triton as kernel

weight = torch.randn(4, 8)
for ids, begins in (([0, 1, 7], [0, 2]), ([0, 1, 2], [1, 2]), ([0, 1, 2], [0, 4]), ([0, 1, 2], [0, 2])):
    ids, begins = torch.tensor(ids), torch.tensor(begins)
    try:
        out = kernel.forward(ids, weight, begins, "sum", None, None)
        print(bool((out == torch.stack((weight[0] + weight[1], weight[2]))).all()))
    except IndexError as error:
        print(error)
for rows, columns in (([0, 1, 2], [0, 4]), ([0, 2, 1], [0, 1]), ([0, 1, 1], [0, 1]), ([0, 1, 2], [3, 1])):
    entries = torch.tensor(rows), torch.tensor(columns), torch.tensor([2.0, 3.0])
    try:
        print(bool((sparse.forward(*entries, weight) == torch.stack((2 * weight[3], 3 * weight[1]))).all()))
    except IndexError as error:
        print(error)
"""


def test_an_id_an_offset_or_an_entry_that_is_none_is_reported_and_nothing_is_read_there() -> None:
    done = forked.python(code=BAGS, TRITON_INTERPRET="1")
    assert done.stdout.splitlines() == [
        "ids must be in [0, 4), weight's rows; this call had another at position 2",
        "offsets must rise from 0 to at most 3, the ids; this call had others at bag 0",
        "offsets must rise from 0 to at most 3, the ids; this call had others at bag 1",
        "True",
        "col_indices must be in [0, 4), dense's rows; this call had another at position 1",
        "crow_indices must rise from 0 to 2, the entries; this call had others at row 1",
        "crow_indices must rise from 0 to 2, the entries; this call had others at row 1",
        "True",
    ], done.stdout + done.stderr
