"""What an article is made of.

In texts, infobox values and table cells `[[Title]]` is a link to another article.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn beside an article; `lines` are in the image and nowhere else."""

    style: str
    """poster, label or scene."""
    lines: tuple[str, ...]
    caption: str
    """Stands in the page under the image; never repeats `lines`."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a heading."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def slug(self) -> str:
        """Its part of the address, where it has a page of its own."""
        return self.heading.replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Reference:
    """Where on another site there is more."""

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
    """Stand in the article, after the sections."""
    annexes: tuple[Table, ...] = ()
    """Too long for the article: each has a page of its own."""
    references: tuple[Reference, ...] = ()

    @property
    def slug(self) -> str:
        """Its part of the address: the title with underscores."""
        return self.title.replace(" ", "_")

    @property
    def headings(self) -> tuple[str, ...]:
        """What stands in it, from top to bottom."""
        return (
            *(heading for heading, _ in self.sections),
            *(table.heading for table in self.tables),
        )

    @property
    def marked(self) -> str:
        """All its words on one line, links still marked."""
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
        """All its words on one line."""
        return self.marked.replace("[[", "").replace("]]", "")


def listing(titles: list[str], *, linked: bool = False) -> str:
    """ "A, B and C", each one a link unless they are `linked` already."""
    marked = [title if linked else f"[[{title}]]" for title in titles]
    return marked[0] if len(marked) == 1 else ", ".join(marked[:-1]) + " and " + marked[-1]
