"""`agentkv bench memory`: peak memory of whole processes."""
