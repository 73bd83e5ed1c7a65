"""`agentkv tasks record`: solutions and successful episodes, played for their pages and replies."""
