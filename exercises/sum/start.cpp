// *result = sum of x[i], in float.
extern "C" void pairwise_sum(const float* x, float* result, long n) {
    float sum = 0;
    for (long i = 0; i < n; ++i) {
        sum += x[i];  // Yours: one after the other is not exact enough.
    }
    *result = sum;
}
