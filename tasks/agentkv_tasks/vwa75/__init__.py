"""Templates of the suite `vwa75`, a module for each category and for what they share."""
