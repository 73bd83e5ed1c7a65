"""`agentkv_lab confidence`."""
