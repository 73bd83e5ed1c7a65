"""The table of families says what the code does."""

from tests.docs.families_table import PAGE, rows


def test_the_table_of_families_is_what_this_version_reads() -> None:
    assert rows() in PAGE.read_text(), "write it anew: python -m tests.docs.families_table"
