// Mamba-2's recurrence by chunks of steps, forward and backward.
#include "states/linear_state.hpp"

KW_LINEAR_STATE_CHUNKED(ssd)
