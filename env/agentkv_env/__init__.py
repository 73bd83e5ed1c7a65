"""The web as the agent meets it: pages read, actions done, and small sites to do them on."""
