"""`agentkv_lab states`: entries of a long stream under each policy."""
