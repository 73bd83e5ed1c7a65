"""A cache at rest: snapshots, and files on disk."""
