"""`agentkv bench needle`: find one fact in a long page under each policy."""
