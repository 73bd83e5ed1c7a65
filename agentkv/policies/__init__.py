"""Which entries a cache keeps, and how precisely: every policy is a value of five parts."""
