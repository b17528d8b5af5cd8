"""How long a program will take after a swap, before it is measured."""
