"""Kernels in Numba for processors. Nothing here is imported unless Numba is there."""
