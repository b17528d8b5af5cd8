// title: Tensor cores (mma.sync)
// launch: threads 256, tile 64 x 16
// multiples: M 64, N 16, K 16
// loads: L1 0.375
// hypothesis: mma.sync multiplies 16 x 16 by 16 x 8 in one instruction of a warp: 2048 multiply-adds. Its operands are
//   spread over the registers of the 32 threads, two neighbours along k in each, so a warp can read them straight from
//   memory with six loads of four bytes a thread. Each load touches eight lines: 48 cycles of L1 for 2048
//   multiply-adds, 43 a cycle where the rung before had one.
// predicts: 40
// next: L1 still, for each matrix instruction reads its operands anew. Keep a block's share of A and B in shared
//   memory, and use each operand in registers for several instructions.
using u16 = unsigned short;
using u32 = unsigned;
using i64 = long long;

// d += a b: a is 16 x 16, b 16 x 8, the sums are float32.
__device__ void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ u32 round(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ u32 pair(const u16* at) { return *reinterpret_cast<const u32*>(at); }

// C[M, N] = A[M, K] B[N, K]^T, all row-major and contiguous.
extern "C" __global__ __launch_bounds__(256) void hgemm(const u16* __restrict__ A, const u16* __restrict__ B, u16* C,
                                                        i64 M, i64 N, i64 K) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    i64 row = blockIdx.y * 64 + warp / 2 * 16 + lane / 4, column = blockIdx.x * 16 + warp % 2 * 8;
    const u16* a = A + row * K + lane % 4 * 2;
    const u16* b = B + (column + lane / 4) * K + lane % 4 * 2;
    float d[4] = {};
    for (i64 k = 0; k < K; k += 16, a += 16, b += 16) {
        u32 left[4] = {pair(a), pair(a + 8 * K), pair(a + 8), pair(a + 8 * K + 8)};
        u32 right[2] = {pair(b), pair(b + 8)};
        mma(d, left, right);
    }
    u32* c = reinterpret_cast<u32*>(C + row * N + column + lane % 4 * 2);
    c[0] = round(d[0], d[1]);
    c[4 * N] = round(d[2], d[3]);
}
