// title: Shared-memory tiles
// launch: threads 256, tile 128 x 128
// multiples: M 128, N 128, K 64
// loads: L2 0.03125, shared 0.125
// hypothesis: A block of 128 x 128 outputs takes 64 columns of A and B at a time into shared memory, each element for
//   128 uses. A warp holds 64 x 32 sums: 24 words a thread from shared memory feed 16 matrix instructions, not two
//   thirds of one. Rows are padded by 16 bytes, so that the eight rows a warp reads lie in different banks. For 2^20
//   multiply-adds a step then takes 768 cycles of reading, 256 of writing, and some 800 for the loads from L2 to
//   arrive; two blocks on a multiprocessor do this in turns. That is 600 to 700 a cycle.
// predicts: 15
// next: While the loads are on their way, and while their data goes through registers into shared memory, this block
//   multiplies nothing.
using u16 = unsigned short;
using u32 = unsigned;
using i64 = long long;

struct alignas(16) Words {  // eight elements
    u32 w[4];
};
constexpr int TILE = 128, DEPTH = 64, PITCH = DEPTH + 8;

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
extern "C" __global__ __launch_bounds__(256, 2) void hgemm(const u16* __restrict__ A, const u16* __restrict__ B, u16* C,
                                                           i64 M, i64 N, i64 K) {
    __shared__ __align__(16) u16 left[TILE * PITCH], right[TILE * PITCH];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, word = threadIdx.x % 8 * 8, first = threadIdx.x / 8;
    int row = warp / 4 * 64, column = warp % 4 * 32;  // of this warp's sums in the tile
    A += blockIdx.y * TILE * K, B += blockIdx.x * TILE * K;
    float d[4][4][4] = {};
    for (i64 k = 0; k < K; k += DEPTH) {
        Words a[4], b[4];
        for (int i = 0; i < 4; ++i) a[i] = *reinterpret_cast<const Words*>(A + (first + 32 * i) * K + k + word);
        for (int i = 0; i < 4; ++i) b[i] = *reinterpret_cast<const Words*>(B + (first + 32 * i) * K + k + word);
        __syncthreads();  // everyone has read the step before
        for (int i = 0; i < 4; ++i) *reinterpret_cast<Words*>(left + (first + 32 * i) * PITCH + word) = a[i];
        for (int i = 0; i < 4; ++i) *reinterpret_cast<Words*>(right + (first + 32 * i) * PITCH + word) = b[i];
        __syncthreads();
#pragma unroll
        for (int q = 0; q < DEPTH; q += 16) {
            u32 x[4][4], y[4][2];
            const u16* p = left + (row + lane / 4) * PITCH + q + lane % 4 * 2;
            const u16* r = right + (column + lane / 4) * PITCH + q + lane % 4 * 2;
            for (int i = 0; i < 4; ++i)
                for (int h = 0; h < 4; ++h) x[i][h] = pair(p + (16 * i + h % 2 * 8) * PITCH + h / 2 * 8);
            for (int j = 0; j < 4; ++j)
                for (int h = 0; h < 2; ++h) y[j][h] = pair(r + 8 * j * PITCH + h * 8);
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) mma(d[i][j], x[i], y[j]);
        }
    }
    C += (blockIdx.y * TILE + row + lane / 4) * N + blockIdx.x * TILE + column + lane % 4 * 2;
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            *reinterpret_cast<u32*>(C + 16 * i * N + 8 * j) = round(d[i][j][0], d[i][j][1]);
            *reinterpret_cast<u32*>(C + (16 * i + 8) * N + 8 * j) = round(d[i][j][2], d[i][j][3]);
        }
}
