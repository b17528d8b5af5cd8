// Mamba-2's recurrence step by step: what decodes.
#include "states/linear_state.hpp"

KW_LINEAR_STATE_STEPS(ssd)
