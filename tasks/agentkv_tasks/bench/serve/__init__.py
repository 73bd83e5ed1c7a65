"""`agentkv bench serve`: conversations with the server, and with a prompt that is read again."""
