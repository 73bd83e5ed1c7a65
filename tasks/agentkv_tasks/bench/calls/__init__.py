"""`agentkv bench calls`: the function calls of recorded conversations."""
