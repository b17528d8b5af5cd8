static long least(long a, long b) { return a < b ? a : b; }

extern "C" void gemv_rows(const float* a, const float* x, float* y, long m, long n, long ith, long nth) {
    long each = (m + nth - 1) / nth;
    long begin = ith * each;
    long end = least(begin + each, m);
    for (long i = begin; i < end; ++i) {
        float sum = 0;
        for (long j = 0; j < n; ++j) {
            sum += a[i * n + j] * x[j];
        }
        y[i] = sum;
    }
}
