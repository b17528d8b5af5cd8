extern "C" void dot(const float* x, const float* y, float* result, long n) {
    double sums[4] = {0, 0, 0, 0};
    long i = 0;
    for (; i + 4 <= n; i += 4) {
        for (long lane = 0; lane < 4; ++lane) {
            sums[lane] += double(x[i + lane]) * y[i + lane];
        }
    }
    for (; i < n; ++i) {  // What is left: at most three.
        sums[0] += double(x[i]) * y[i];
    }
    double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    *result = sum;
}
