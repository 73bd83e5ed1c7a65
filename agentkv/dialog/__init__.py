"""Prompts, replies and the grammar between them."""
