"""`agentkv_lab injection`: what the orders of hostile pages achieve."""
