"""`agentkv train`: an adapter for a model, from recordings."""
