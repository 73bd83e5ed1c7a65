"""The error of all benchmarks."""


class BenchError(ValueError):
    """A measurement that cannot be made as requested; the message names what is possible."""
