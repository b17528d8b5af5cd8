extern "C" void recurrence(const float* x, const float* decay, float* state, float* y, long steps, long channels) {
    for (long c = 0; c < channels; ++c) {
        float h = state[c];
        for (long t = 0; t < steps; ++t) {
            h = decay[t * channels + c] * h + x[t * channels + c];
            y[t * channels + c] = h;
        }
        state[c] = h;
    }
}
