"""Small experiments, one for each concept of the documentation, that a reader runs on a machine of their own."""
