// linear_gelu for 16-bit elements on Hopper, by word and element type.
#include "epilogue.cuh"

KW_FUSED(gelu_tanh_bfloat16, Bf16, GeluTanh)
KW_FUSED(gelu_tanh_float16, F16, GeluTanh)
KW_FUSED(gelu_none_bfloat16, Bf16, GeluNone<Bf16>)
KW_FUSED(gelu_none_float16, F16, GeluNone<F16>)
