"""Which stored rows a cache keeps, and how precisely: every policy is a value made of five parts."""
