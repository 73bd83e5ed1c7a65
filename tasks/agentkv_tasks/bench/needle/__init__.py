"""`agentkv bench needle`: one fact in a long page, and whether a model under a policy finds it."""
