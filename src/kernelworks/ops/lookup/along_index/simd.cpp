// Elements picked by an index, and added where an index says, in portable vectors: along_index.hpp does all of it.
#include "along_index.hpp"

KW_EXPORT(gather) { kw::gather(args); }
KW_EXPORT(scatter_add) { kw::scatter_add(args); }
KW_ANSWER(first_outside) { return kw::first_outside(args); }
