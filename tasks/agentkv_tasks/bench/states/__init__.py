"""`agentkv bench states`: entries of a long stream under each policy."""
