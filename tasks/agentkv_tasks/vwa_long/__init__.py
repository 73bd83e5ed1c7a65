"""Templates of the suite `vwa-long`, a module for each category and for what they share."""
