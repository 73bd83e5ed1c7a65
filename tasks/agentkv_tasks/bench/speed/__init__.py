"""`agentkv bench speed`: decode latency of checked caches."""
