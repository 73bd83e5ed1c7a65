"""Steps, checks and draws shared by the long question and navigation tasks."""

from agentkv_env.sites.classifieds.content import Listing
from agentkv_env.sites.forum.content import Poster, Thread
from agentkv_env.sites.wiki.content import Town
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draw, says
from agentkv_tasks.vwa75.steps import find_listing, find_thread


def article_url(title: str) -> str:
    """Return the address of the wiki article with this title."""
    return f"__WIKIPEDIA__/wiki/{title.replace(' ', '_')}"


def switch_site(site: str) -> list[str]:
    """Return the steps that switch sites in the same tab, through the home page."""
    return ["click [link: All sites]", f"click [link: {site}]"]


def find_author(thread: Thread) -> list[str]:
    """Return the steps on the forum that open the page of the author of `thread`."""
    return [*find_thread(thread.title), f"click [link: {thread.author}]"]


def find_seller(listing: Listing) -> list[str]:
    """Return the steps on the classifieds that open the page of the seller of `listing`."""
    return [*find_listing(listing.title), f"click [link: {listing.seller}]"]


def join_facts(*facts: object) -> str:
    """Join several facts into one answer."""
    return ", ".join(map(str, facts))


def says_all(*facts: object) -> Evaluation:
    """Require the answer to contain these facts in this order, separated by commas."""
    return says(must_include=[join_facts(*facts)])


# ---- random draws ---------------------------------------------------------------------------


def draw_towns(draw: Draw, count: int) -> list[Town]:
    """Draw `count` wiki towns with different founding years."""
    towns = {town.founded: town for town in draw.world.wiki.towns}
    return draw.rng.sample(list(towns.values()), count)


def mayor_birth_year(draw: Draw, town: Town) -> int:
    """Return the birth year of the mayor of `town`."""
    return draw.world.wiki.figure(town.mayor).born


def draw_listings(draw: Draw, kind: str, count: int) -> list[Listing]:
    """Draw `count` listings of other people whose photos show a fact of this kind."""
    me = draw.world.me.handle
    fitting = [x for x in draw.world.classifieds.listings if x.photo.kind == kind]
    return draw.rng.sample([x for x in fitting if x.seller != me], count)


def draw_posters(draw: Draw, count: int) -> list[tuple[Thread, Poster]]:
    """Draw `count` threads that have a poster, with their posters."""
    return draw.rng.sample([(t, t.poster) for t in draw.world.forum.threads if t.poster], count)


def draw_authors(draw: Draw, count: int) -> list[tuple[Thread, int]]:
    """Draw `count` threads by different authors, with the years in which the authors joined.

    The years differ as well, except in the rare world that has too few different years.
    """
    forum, me = draw.world.forum, draw.world.me.handle
    foreign = [thread for thread in forum.threads if thread.author != me]
    by_author = {thread.author: thread for thread in foreign}
    by_year = {forum.member(author).joined: thread for author, thread in by_author.items()}
    fitting = by_year if len(by_year) >= count else by_author
    chosen = draw.rng.sample(list(fitting.values()), count)
    return [(thread, forum.member(thread.author).joined) for thread in chosen]
