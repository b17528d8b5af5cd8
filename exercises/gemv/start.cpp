// y[i] = bias[i] + sum over j of a[i, j] * x[j].
extern "C" void gemv(const float* a, long lda, const float* x, const float* bias, float* y, long m, long n) {
    for (long i = 0; i < m; ++i) {
        float sum = bias[i];
        for (long j = 0; j < n; ++j) {
            sum += a[j] * x[j];  // Yours: this is row 0 for every i.
        }
        y[i] = sum;
    }
    (void)lda;  // Says that lda is not used yet; take it away.
}
