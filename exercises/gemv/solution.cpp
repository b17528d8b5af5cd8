extern "C" void gemv(const float* a, long lda, const float* x, const float* bias, float* y, long m, long n) {
    for (long i = 0; i < m; ++i) {
        float sum = bias[i];
        for (long j = 0; j < n; ++j) {
            sum += a[i * lda + j] * x[j];
        }
        y[i] = sum;
    }
}
