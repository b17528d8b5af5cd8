// The sum of x in sixteen lanes, by the widest instructions that level allows and the processor has.
extern "C" void lane_sum(const float* x, float* result, long n, long level) {
    float sums[16] = {};
    for (long i = 0; i < n; ++i) {
        sums[i % 16] += x[i];
    }
    float total = 0;  // Yours: fold the lanes in the order of the contract, and have a version for each level.
    for (long lane = 0; lane < 16; ++lane) {
        total += sums[lane];
    }
    *result = total;
    (void)level;
}
