"""CUDA graphs of a module's calls: captured, held against the module, replayed."""
