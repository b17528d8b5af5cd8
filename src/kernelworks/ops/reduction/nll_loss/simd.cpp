// nll_loss, the same for every instruction set: a row has one element that is read.
#include "loss_rows.hpp"

KW_EXPORT(nll_loss) { write_loss(args); }
KW_EXPORT(nll_loss_backward) { write_gradient(args); }
