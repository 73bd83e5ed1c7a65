"""`agentkv bench injection`: orders that a page gives an agent, and what they achieve."""
