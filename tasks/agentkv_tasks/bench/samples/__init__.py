"""Samples: contexts of one stream with their continuations, which every policy reads the same."""
