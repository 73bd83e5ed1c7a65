"""JSON schemas of replies: what a grammar enforces, what only the finished reply can tell."""
