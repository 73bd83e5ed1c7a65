"""Key-value cache: storage, eviction, integration with transformers, files on disk."""
