// nll_loss, to be read: loss_rows.hpp.
#include "loss_rows.hpp"

KW_EXPORT(nll_loss) { write_loss(args); }
KW_EXPORT(nll_loss_backward) { write_gradient(args); }
