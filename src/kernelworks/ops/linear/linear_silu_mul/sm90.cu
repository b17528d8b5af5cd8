// linear_silu_mul for 16-bit elements on Hopper, by element type.
#include "epilogue.cuh"

KW_FUSED(silu_mul_bfloat16, Bf16, SiluMul)
KW_FUSED(silu_mul_float16, F16, SiluMul)
