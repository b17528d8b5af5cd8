// c[i, j] = sum over p of a[i, p] * b[p, j].
extern "C" void gemm(const float* a, long lda, const float* b, long ldb, float* c, long ldc, long m, long n, long k) {
    for (long i = 0; i < m; ++i) {
        for (long j = 0; j < n; ++j) {
            c[i * ldc + j] = a[i * lda] * b[j];  // Yours: this is the product for p = 0 alone.
        }
    }
    (void)ldb, (void)k;  // Says that these are not used yet; take it away.
}
