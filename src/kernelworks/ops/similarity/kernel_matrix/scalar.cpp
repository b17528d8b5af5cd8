// kernel_matrix, to be read: the second half of matrix.hpp, pair by pair in double.
#include "matrix.hpp"
