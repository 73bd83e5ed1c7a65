"""The cache of keys and values: what it stores, and how a transformers model reads it."""
