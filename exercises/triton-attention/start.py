import triton
import triton.language as tl


@triton.jit
def attention_kernel(
    q, k, v, out, scale, Lq, Lk, q_head, q_row, k_head, k_row, v_head, v_row, out_head, out_row,
    D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    queries = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    d = tl.arange(0, D)
    seen = queries[:, None] < Lq
    q_tile = tl.load(q + head * q_head + queries[:, None] * q_row + d[None, :], mask=seen, other=0.0)
    largest = tl.full((QUERIES,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((QUERIES,), dtype=tl.float32)
    gathered = tl.zeros((QUERIES, D), dtype=tl.float32)
    for start in range(0, Lk, KEYS):
        keys = start + tl.arange(0, KEYS)
        there = keys[:, None] < Lk
        k_tile = tl.load(k + head * k_head + keys[:, None] * k_row + d[None, :], mask=there, other=0.0)
        v_tile = tl.load(v + head * v_head + keys[:, None] * v_row + d[None, :], mask=there, other=0.0)
        # 1. scores = scale * q_tile k_tile'; those of keys that are not there are -inf
        # 2. the largest score so far, and how much the sums so far shrink by it
        # 3. add the tile to total and to gathered
    place = out + head * out_head + queries[:, None] * out_row + d[None, :]
    tl.store(place, gathered, mask=seen)


def attention(q, k, v, out, scale):
    H, Lq, D = q.shape
    QUERIES = 16
    attention_kernel[(triton.cdiv(Lq, QUERIES), H)](
        q, k, v, out, scale, Lq, k.shape[1], q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0),
        v.stride(1), out.stride(0), out.stride(1), D=D, QUERIES=QUERIES, KEYS=32,
    )  # fmt: skip
