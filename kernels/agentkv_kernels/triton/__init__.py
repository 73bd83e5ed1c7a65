"""Kernels for CUDA devices, one file for each function of `segments`. Imported only where they
run."""
