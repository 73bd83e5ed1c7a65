"""Eviction: what a policy is shown, and its verdicts carried out on all layers."""
