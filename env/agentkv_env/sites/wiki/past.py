"""The history and talk page of an article, generated from its title."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache

from agentkv_env.sites.names import Person
from agentkv_env.sites.region import Region
from agentkv_env.sites.wiki.article import Article
from agentkv_env.sites.wiki.articles import articles
from agentkv_env.sites.wiki.content import WikiContent


@dataclass(frozen=True, slots=True)
class Revision:
    """One change of an article."""

    title: str
    number: int
    """Counted from 1, the oldest revision."""
    day: date
    author: Person
    summary: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment on an article's talk page."""

    author: Person
    body: str


_SUMMARIES = (
    "Correct the {row}",
    "Add the {row}",
    "Fix a spelling mistake",
    "Shorter sentences",
    "Better picture",
    "Take back a change by {person}",
    "Add a link",
    "Check the {row} again",
)
_REMARKS = (
    "The {row} comes from the town hall of {place}.",
    "I asked {person} about the {row}, and it is right.",
    "The picture should be larger.",
    "The {row} was wrong until {month}.",
    "Can somebody from {place} check the {row}?",
)
_MEETING = "We meet to work on this page in {place} on {day} at {hour} o'clock."
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS = "January February March April May June July August October November".split()


def revisions(region: Region, article: Article) -> tuple[Revision, ...]:
    """Return the revisions of `article`, newest first."""
    return tuple(reversed(tuple(_revisions(region, article))))


def remarks(region: Region, article: Article) -> tuple[Remark, ...]:
    """Return the initial comments on the talk page of `article`.

    The last comment announces a meeting, which no other page mentions.
    """
    rng = random.Random(f"{region.seed}/talk/{article.title}")
    patterns = [*rng.sample(_REMARKS, rng.randint(1, 2)), _MEETING]
    authors = rng.sample(region.people[1:], len(patterns))
    return tuple(
        Remark(
            author,
            pattern.format(
                row=_row(rng, article), place=rng.choice(region.places),
                person=rng.choice(region.people).handle, month=rng.choice(_MONTHS),
                day=rng.choice(_DAYS), hour=rng.randint(3, 8),
            ),
        )
        for author, pattern in zip(authors, patterns, strict=True)
    )  # fmt: skip


@lru_cache(maxsize=16)
def recent(region: Region, content: WikiContent) -> tuple[Revision, ...]:
    """Return the latest revision of every article, newest first."""
    newest = (revisions(region, article)[0] for article in articles(content).values())
    return tuple(sorted(newest, key=lambda each: (-each.day.toordinal(), each.title)))


def _revisions(region: Region, article: Article) -> Iterator[Revision]:
    rng = random.Random(f"{region.seed}/past/{article.title}")
    count = rng.randint(4, 13)
    ago = sorted(rng.sample(range(1, 900), count), reverse=True)
    for number, days in enumerate(ago, start=1):
        author, other = rng.sample(region.people[1:], 2)
        pattern = "New page" if number == 1 else rng.choice(_SUMMARIES)
        summary = pattern.format(row=_row(rng, article), person=other.handle)
        day = region.now.date() - timedelta(days=days)
        yield Revision(article.title, number, day, author, summary)


def _row(rng: random.Random, article: Article) -> str:
    name = rng.choice(article.infobox)[0]
    return name[0].lower() + name[1:]
