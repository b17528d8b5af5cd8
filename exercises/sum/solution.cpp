static float tree(const float* x, long n) {
    if (n <= 128) {
        float sum = 0;
        for (long i = 0; i < n; ++i) {
            sum += x[i];
        }
        return sum;
    }
    return tree(x, n / 2) + tree(x + n / 2, n - n / 2);
}

extern "C" void pairwise_sum(const float* x, float* result, long n) { *result = tree(x, n); }
