"""Forms in which models write calls of functions, a module each, and their shared parts."""
