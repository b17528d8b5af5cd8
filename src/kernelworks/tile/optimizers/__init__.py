"""Steps of optimizers as entries of a table, on a GPU."""
