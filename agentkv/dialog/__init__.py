"""Prompts, replies, and the grammar that constrains them."""
