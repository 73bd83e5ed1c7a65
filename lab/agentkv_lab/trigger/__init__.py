"""`agentkv_lab trigger`."""
