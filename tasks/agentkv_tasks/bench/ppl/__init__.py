"""`agentkv bench ppl`."""
