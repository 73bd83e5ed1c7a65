"""Integration with transformers: attention, hooks and model families."""
