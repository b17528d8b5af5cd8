// y[i] = sum over j of a[i, j] * x[j], for the rows of slice ith of nth.
static long least(long a, long b) { return a < b ? a : b; }

extern "C" void gemv_rows(const float* a, const float* x, float* y, long m, long n, long ith, long nth) {
    long begin = 0;            // Yours: where the rows of this slice begin,
    long end = least(m, m);    // and where they end. This does all of them on every thread.
    for (long i = begin; i < end; ++i) {
        float sum = 0;
        for (long j = 0; j < n; ++j) {
            sum += a[i * n + j] * x[j];
        }
        y[i] = sum;
    }
    (void)ith, (void)nth;  // Says that these are not used yet; take it away.
}
