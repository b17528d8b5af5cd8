"""The places in a program at which an optimization can be applied: modules, functions and who holds them."""
