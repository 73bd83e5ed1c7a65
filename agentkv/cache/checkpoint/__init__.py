"""Checkpoints: the state of a cache in memory and on disk."""
