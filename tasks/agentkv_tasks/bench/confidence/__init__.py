"""`agentkv bench confidence`."""
