"""A run on the nodes of a Ray cluster."""
