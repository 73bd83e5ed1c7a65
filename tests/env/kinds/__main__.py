"""Print the table of kinds for docs/page-kinds.md: `python -m tests.env.kinds`."""

from tests.env.kinds.table import table

print(table(), end="")
