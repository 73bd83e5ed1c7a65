"""Benchmarks of a cache by itself, without tasks."""
