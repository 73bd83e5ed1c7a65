"""Kernels for CUDA devices. Imported only where they run."""
