"""Steps of optimizers as entries of a table: the entry, the ops, their C++."""
