"""Traces of agents, replayed against the server."""
