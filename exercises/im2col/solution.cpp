static bool inside(long at, long size) { return 0 <= at && at < size; }

extern "C" void im2col(const float* x, float* columns, long channels, long height, long width, long window, long pad) {
    long out_height = height + 2 * pad - window + 1, out_width = width + 2 * pad - window + 1;
    float* to = columns;
    for (long c = 0; c < channels; ++c) {
        for (long p = 0; p < window; ++p) {
            for (long r = 0; r < window; ++r) {
                for (long i = 0; i < out_height; ++i) {
                    for (long j = 0; j < out_width; ++j) {
                        long row = i + p - pad, column = j + r - pad;
                        if (inside(row, height) && inside(column, width)) {
                            *to = x[(c * height + row) * width + column];
                        } else {
                            *to = 0;
                        }
                        ++to;
                    }
                }
            }
        }
    }
}
