"""The arithmetic of the cache: attention over a store of mixed precision, and its 8-bit format."""
