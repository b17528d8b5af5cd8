"""Device functions in Triton that several rooms share, one subject a file; what ``simd/`` is to C++."""
