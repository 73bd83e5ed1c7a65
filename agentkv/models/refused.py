"""The error of a model that cannot be loaded."""


class ModelError(ValueError):
    """No model can be loaded from this name or folder; the message says why and what to do."""
