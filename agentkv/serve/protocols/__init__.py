"""Protocols of clients: requests that become jobs, and the answers to them."""
