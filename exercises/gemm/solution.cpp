extern "C" void gemm(const float* a, long lda, const float* b, long ldb, float* c, long ldc, long m, long n, long k) {
    for (long i = 0; i < m; ++i) {
        float* row = c + i * ldc;
        for (long j = 0; j < n; ++j) {
            c[i * ldc + j] = 0;
        }
        for (long p = 0; p < k; ++p) {
            for (long j = 0; j < n; ++j) {
                row[j] += a[i * lda + p] * b[p * ldb + j];
            }
        }
    }
}
