"""`agentkv calibrate`: choose when a cache looks back, on recorded episodes or on a text."""
