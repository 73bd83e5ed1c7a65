"""Who answers the agent loop: language models on this machine, and scripts."""
