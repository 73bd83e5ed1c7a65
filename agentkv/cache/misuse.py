"""The error of a cache that cannot do what was asked."""


class Misuse(ValueError):
    """The cache cannot do what was asked; it is unchanged."""
