"""How models write calls of functions: a module for each form, and what they share."""
