"""Measurements of a cache by itself: what it keeps, and what that does to a model."""
