"""Kernels for CUDA devices, one file for each function of `lanes`. Imported only where they run."""
