"""`agentkv bench injection`: what the orders of hostile pages achieve."""
