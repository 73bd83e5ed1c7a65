"""The caches that are compared: ours and others, their models, and the check of each."""
