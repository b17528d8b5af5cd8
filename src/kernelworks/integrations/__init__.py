"""Where people already are: notebooks, pytest, transformers' Trainer. Each module needs its host, nothing else does."""
