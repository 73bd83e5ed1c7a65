"""The commands of `agentkv bench`."""
