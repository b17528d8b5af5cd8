// c[i, j] = sum over p of a[i, p] * b[p, j], in blocks.
const long BLOCK = 32;

static long least(long a, long b) { return a < b ? a : b; }

extern "C" void gemm_blocked(const float* a, const float* b, float* c, long m, long n, long k) {
    for (long at = 0; at < m * n; ++at) {
        c[at] = 0;
    }
    for (long i0 = 0; i0 < m; i0 += BLOCK) {
        for (long j0 = 0; j0 < n; j0 += BLOCK) {
            // Yours: go over the blocks of p, too. This is the first block alone.
            for (long i = i0; i < least(i0 + BLOCK, m); ++i) {
                for (long p = 0; p < least(BLOCK, k); ++p) {
                    for (long j = j0; j < least(j0 + BLOCK, n); ++j) {
                        c[i * n + j] += a[i * k + p] * b[p * n + j];
                    }
                }
            }
        }
    }
}
