"""The error of an adapter whose package is not installed."""


class PackageMissing(ImportError):
    """A package that an adapter needs is not installed; the message says how to install it.

    Args:
        package: the package that was not found.
        command: installs it.
    """

    def __init__(self, package: str, command: str) -> None:
        super().__init__(f"this needs {package}, which is not installed: {command}")
