"""The arithmetic of the cache: attention over a store of mixed precision, and its formats."""
