"""Templates of the suite `vwa-unseen`, a module for each category and for what they share."""
