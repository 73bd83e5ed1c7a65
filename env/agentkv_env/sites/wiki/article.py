"""The parts of an article.

In texts, infobox values and table cells `[[Title]]` is a link to another article.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture of an article; only the picture shows `lines`."""

    style: str
    """poster, label or scene."""
    lines: tuple[str, ...]
    caption: str
    """The text under the picture; never repeats `lines`."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a heading."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def slug(self) -> str:
        """Its part of the address, for a table with its own page."""
        return self.heading.replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Reference:
    """A link to another site."""

    text: str
    site: str
    path: str


@dataclass(frozen=True, slots=True)
class Article:
    """One page of the wiki."""

    title: str
    category: str
    lead: str
    infobox: tuple[tuple[str, str], ...]
    sections: tuple[tuple[str, str], ...]
    """Heading and text."""
    picture: Picture
    tables: tuple[Table, ...] = ()
    """Tables after the sections."""
    annexes: tuple[Table, ...] = ()
    """Tables that are too long for the article; each has its own page."""
    references: tuple[Reference, ...] = ()

    @property
    def slug(self) -> str:
        """Its part of the address: the title with underscores."""
        return self.title.replace(" ", "_")

    @property
    def headings(self) -> tuple[str, ...]:
        """Its contents, from top to bottom."""
        return (
            *(heading for heading, _ in self.sections),
            *(table.heading for table in self.tables),
        )

    @property
    def marked(self) -> str:
        """All words of the article on one line, with link marks."""
        tables = [*self.tables, *self.annexes]
        return " ".join(
            (
                self.title,
                self.lead,
                *(f"{name} {value}" for name, value in self.infobox),
                *(f"{heading} {text}" for heading, text in self.sections),
                *(f"{table.heading} {' '.join(table.columns)}" for table in tables),
                *(cell for table in tables for row in table.rows for cell in row),
            )
        )

    @property
    def plain(self) -> str:
        """All words of the article on one line."""
        return self.marked.replace("[[", "").replace("]]", "")


def listing(titles: list[str], *, linked: bool = False) -> str:
    """Return "A, B and C", each a link unless the names are already `linked`."""
    marked = [title if linked else f"[[{title}]]" for title in titles]
    return marked[0] if len(marked) == 1 else ", ".join(marked[:-1]) + " and " + marked[-1]
