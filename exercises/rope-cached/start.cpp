// Turns every head of every row of q and k, in place, with row i of the table.
extern "C" void rope_cached(float* q, float* k, const float* cosine, const float* sine, long length, long heads,
                            long kv_heads, long d) {
    long half = d / 2;
    for (long i = 0; i < length; ++i) {
        for (long h = 0; h < heads; ++h) {
            float* x = q + (i * heads + h) * d;
            for (long c = 0; c < half; ++c) {
                float first = x[c], second = x[c + half];
                x[c] = first * cosine[i * half + c] - second * sine[i * half + c];
                x[c + half] = second * cosine[i * half + c] + first * sine[i * half + c];
            }
        }
    }
    (void)k, (void)kv_heads;  // Yours: the keys.
}
