const long BLOCK = 32;

static long least(long a, long b) { return a < b ? a : b; }

extern "C" void gemm_blocked(const float* a, const float* b, float* c, long m, long n, long k) {
    for (long at = 0; at < m * n; ++at) {
        c[at] = 0;
    }
    for (long p0 = 0; p0 < k; p0 += BLOCK) {
        for (long i0 = 0; i0 < m; i0 += BLOCK) {
            for (long j0 = 0; j0 < n; j0 += BLOCK) {
                for (long i = i0; i < least(i0 + BLOCK, m); ++i) {
                    for (long p = p0; p < least(p0 + BLOCK, k); ++p) {
                        for (long j = j0; j < least(j0 + BLOCK, n); ++j) {
                            c[i * n + j] += a[i * k + p] * b[p * n + j];
                        }
                    }
                }
            }
        }
    }
}
