// c[i, j] = sum over p of a[i, p] * b[p, j], in blocks of b.
const long DEEP = 64;   // A block of B: so many rows
const long WIDE = 512;  // and columns.

static long least(long a, long b) { return a < b ? a : b; }

extern "C" void gemm_blocked(const float* a, const float* b, float* c, long m, long n, long k) {
    for (long at = 0; at < m * n; ++at) {
        c[at] = 0;
    }
    for (long j0 = 0; j0 < n; j0 += WIDE) {
        // Yours: go over the blocks of p, too. This is the first block alone. Then four p in one round.
        for (long i = 0; i < m; ++i) {
            for (long p = 0; p < least(DEEP, k); ++p) {
                for (long j = j0; j < least(j0 + WIDE, n); ++j) {
                    c[i * n + j] += a[i * k + p] * b[p * n + j];
                }
            }
        }
    }
}
