"""What policies do to the entries of a long stream, and to the next-token distribution."""
