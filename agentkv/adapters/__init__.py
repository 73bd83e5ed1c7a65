"""Interfaces of other programs, a module for each."""
