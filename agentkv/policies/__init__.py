"""Policies decide which entries a cache keeps, and in which format. A policy has six parts."""
