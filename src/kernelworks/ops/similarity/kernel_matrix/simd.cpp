// kernel_matrix on vectors: matrix.hpp says both this and the definition, as every sum over pairs does.
#include "matrix.hpp"
