const long DEEP = 64;   // A block of B: so many rows
const long WIDE = 512;  // and columns. 64 x 512 floats are 128 KB, less than an L2 cache holds.

static long least(long a, long b) { return a < b ? a : b; }

extern "C" void gemm_blocked(const float* a, const float* b, float* c, long m, long n, long k) {
    for (long at = 0; at < m * n; ++at) {
        c[at] = 0;
    }
    for (long p0 = 0; p0 < k; p0 += DEEP) {
        for (long j0 = 0; j0 < n; j0 += WIDE) {
            long p1 = least(p0 + DEEP, k);
            long j1 = least(j0 + WIDE, n);
            for (long i = 0; i < m; ++i) {
                const float* w = a + i * k;
                float* row = c + i * n;
                long p = p0;
                for (; p + 4 <= p1; p += 4) {  // Four rows of B for one load and one store of C.
                    const float* r = b + p * n;
                    for (long j = j0; j < j1; ++j) {
                        row[j] += w[p] * r[j] + w[p + 1] * r[n + j] + w[p + 2] * r[2 * n + j] + w[p + 3] * r[3 * n + j];
                    }
                }
                for (; p < p1; ++p) {  // What is left: at most three.
                    for (long j = j0; j < j1; ++j) {
                        row[j] += w[p] * b[p * n + j];
                    }
                }
            }
        }
    }
}
