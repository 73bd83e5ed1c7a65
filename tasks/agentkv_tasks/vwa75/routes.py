"""Pieces of long solutions, and the checks for several facts in one answer."""

from agentkv_env.sites.classifieds.content import Listing
from agentkv_env.sites.forum.content import Poster, Thread
from agentkv_env.sites.wiki.content import Town
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draw, says
from agentkv_tasks.vwa75.steps import find_listing, find_thread


def article(title: str) -> str:
    """Where the wiki has the article with this title."""
    return f"__WIKIPEDIA__/wiki/{title.replace(' ', '_')}"


def over_to(site: str) -> list[str]:
    """Leave for another site through the home page; nothing stays open behind."""
    return ["click [link: All sites]", f"click [link: {site}]"]


def find_author(thread: Thread) -> list[str]:
    """On the forum: open the page of whoever started `thread`."""
    return [*find_thread(thread.title), f"click [link: {thread.author}]"]


def find_seller(listing: Listing) -> list[str]:
    """On the classifieds: open the page of whoever offers `listing`."""
    return [*find_listing(listing.title), f"click [link: {listing.seller}]"]


def joined(*facts: object) -> str:
    """Several facts as one answer."""
    return ", ".join(map(str, facts))


def says_all(*facts: object) -> Evaluation:
    """The answer has these facts, in this order, joined as the goal asks."""
    return says(must_include=[joined(*facts)])


# ---- what is drawn --------------------------------------------------------------------------


def some_towns(draw: Draw, count: int) -> list[Town]:
    """`count` towns of the wiki, no two founded in the same year."""
    towns = {town.founded: town for town in draw.world.wiki.towns}
    return draw.rng.sample(list(towns.values()), count)


def mayors_year(draw: Draw, town: Town) -> int:
    """The year in which the mayor of `town` was born."""
    return draw.world.wiki.figure(town.mayor).born


def some_listings(draw: Draw, kind: str, count: int) -> list[Listing]:
    """`count` listings of other people whose photos have a fact of this kind."""
    me = draw.world.me.handle
    fitting = [x for x in draw.world.classifieds.listings if x.photo.kind == kind]
    return draw.rng.sample([x for x in fitting if x.seller != me], count)


def some_posters(draw: Draw, count: int) -> list[tuple[Thread, Poster]]:
    """`count` threads with a poster, and the posters."""
    return draw.rng.sample([(t, t.poster) for t in draw.world.forum.threads if t.poster], count)


def some_authors(draw: Draw, count: int) -> list[tuple[Thread, int]]:
    """`count` threads by different people, and the years in which those joined.

    The years differ too, but in the rare world where too few do.
    """
    forum, me = draw.world.forum, draw.world.me.handle
    foreign = [thread for thread in forum.threads if thread.author != me]
    by_author = {thread.author: thread for thread in foreign}
    by_year = {forum.member(author).joined: thread for author, thread in by_author.items()}
    fitting = by_year if len(by_year) >= count else by_author
    chosen = draw.rng.sample(list(fitting.values()), count)
    return [(thread, forum.member(thread.author).joined) for thread in chosen]
