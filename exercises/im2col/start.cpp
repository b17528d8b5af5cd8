// columns[(c * window + p) * window + r, i * out_width + j] = x[c, i + p - pad, j + r - pad], 0 outside.
extern "C" void im2col(const float* x, float* columns, long channels, long height, long width, long window, long pad) {
    long out_height = height + 2 * pad - window + 1, out_width = width + 2 * pad - window + 1;
    float* to = columns;
    for (long c = 0; c < channels; ++c) {
        for (long p = 0; p < window; ++p) {
            for (long r = 0; r < window; ++r) {
                for (long i = 0; i < out_height; ++i) {
                    for (long j = 0; j < out_width; ++j) {
                        *to = 0;  // Yours: the picture's number, where the window is over the picture.
                        ++to;
                    }
                }
            }
        }
    }
    (void)x;  // Says that x is not used yet; take it away.
}
