"""Navigation tasks outside the shop: the wiki, the forum, the classifieds."""

from agentkv_tasks.template import Draft, Draw, reaches
from agentkv_tasks.vwa75.steps import done, find_article, find_listing, find_thread


def article(title: str) -> str:
    """Where the wiki has the article with this title."""
    return f"__WIKIPEDIA__/wiki/{title.replace(' ', '_')}"


# ---- the wiki -------------------------------------------------------------------------------


def wiki_article(draw: Draw) -> Draft:
    """One search."""
    wiki = draw.world.wiki
    titles = (wiki.towns, wiki.landmarks, wiki.rivers, wiki.festivals)[draw.instance % 4]
    title = draw.rng.choice([each.name for each in titles])
    return Draft(
        intent=draw.rng.choice(
            (
                "Find the article {{title}} in the wiki.",
                "Open the wiki page about {{title}}.",
                "Look up {{title}} in the wiki.",
            )
        ),
        values={"title": title},
        start="__WIKIPEDIA__",
        check=reaches(article(title)),
        solution=[find_article(title), done()],
    )


def article_of_a_mayor(draw: Draw) -> Draft:
    """A search and a link in the text."""
    town = draw.rng.choice(draw.world.wiki.towns)
    return Draft(
        intent=draw.rng.choice(
            (
                "Open the wiki's article about the mayor of {{town}}.",
                "Who is the mayor of {{town}}? Open the article about that person.",
            )
        ),
        values={"town": town.name},
        start="__WIKIPEDIA__",
        check=reaches(article(town.mayor)),
        solution=[find_article(town.name), f"click [link: {town.mayor}]", done()],
    )


def birthplace_of_a_founder(draw: Draw) -> Draft:
    """From the company to its founder to a town."""
    wiki = draw.world.wiki
    maker = draw.rng.choice(wiki.makers)
    founder = wiki.figure(maker.founder)
    return Draft(
        intent="Open the wiki's article about the town in which the founder of {{maker}} was born.",
        values={"maker": maker.name},
        start="__WIKIPEDIA__",
        check=reaches(article(founder.birthplace)),
        solution=[
            find_article(maker.name),
            f"click [link: {founder.name}]",
            f"click [link: {founder.birthplace}]",
            done(),
        ],
        difficulty="medium",
    )


# ---- the forum ------------------------------------------------------------------------------


def board_of_the_forum(draw: Draw) -> Draft:
    """From the home page by links."""
    board = draw.rng.choice(draw.world.forum.boards)
    return Draft(
        intent="Take me to the board {{board}} of the forum.",
        values={"board": board.name},
        start="__HOMEPAGE__",
        check=reaches(f"__REDDIT__/board/{board.name}"),
        solution=[
            "click [link: Forum]",
            "click [link: Boards]",
            f"click [link: {board.name}]",
            done(),
        ],
    )


def thread_page(draw: Draw) -> Draft:
    """Search and open."""
    thread = draw.rng.choice(draw.world.forum.threads)
    return Draft(
        intent=draw.rng.choice(
            (
                "Open the forum thread {{thread}}.",
                "Find the thread {{thread}} on the forum and open it.",
            )
        ),
        values={"thread": thread.title},
        start="__REDDIT__",
        check=reaches(f"__REDDIT__/thread/{thread.id}"),
        solution=[*find_thread(thread.title), done()],
    )


def page_of_an_author(draw: Draw) -> Draft:
    """From the thread to whoever wrote it."""
    thread = draw.rng.choice(draw.world.forum.threads)
    return Draft(
        intent="Open the user page of the person who started the thread {{thread}}.",
        values={"thread": thread.title},
        start="__REDDIT__",
        check=reaches(f"__REDDIT__/user/{thread.author}"),
        solution=[*find_thread(thread.title), f"click [link: {thread.author}]", done()],
    )


def top_thread_of_a_board(draw: Draw) -> Draft:
    """The board's order has to be changed first."""
    board = draw.rng.choice(draw.world.forum.threads).board
    threads = [thread for thread in draw.world.forum.threads if thread.board == board]
    top = max(threads, key=lambda thread: thread.score)
    return Draft(
        intent="Open the thread with the most points of all time on the forum's board {{board}}.",
        values={"board": board},
        start="__REDDIT__",
        check=reaches(f"__REDDIT__/thread/{top.id}"),
        solution=[
            "click [link: Boards]",
            f"click [link: {board}]",
            "click [link: Top]",
            f"click [link: {top.title}]",
            done(),
        ],
        difficulty="medium",
    )


# ---- the classifieds ------------------------------------------------------------------------


def listing_page(draw: Draw) -> Draft:
    """Search and open."""
    listing = draw.rng.choice(draw.world.classifieds.listings)
    return Draft(
        intent=draw.rng.choice(
            (
                "Find the listing {{listing}} in the classifieds and open it.",
                "Open the listing {{listing}}.",
                "Somebody sells a {{listing}}. Open that listing.",
            )
        ),
        values={"listing": listing.title},
        start="__CLASSIFIEDS__",
        check=reaches(f"__CLASSIFIEDS__/listing/{listing.id}"),
        solution=[*find_listing(listing.title), done()],
    )


def page_of_a_seller(draw: Draw) -> Draft:
    """From the home page to the listing to whoever offers it."""
    listing = draw.rng.choice(draw.world.classifieds.listings)
    return Draft(
        intent="Who sells the {{listing}} in the classifieds? Open the page of that seller.",
        values={"listing": listing.title},
        start="__HOMEPAGE__",
        check=reaches(f"__CLASSIFIEDS__/seller/{listing.seller}"),
        solution=[
            "click [link: Classifieds]",
            *find_listing(listing.title),
            f"click [link: {listing.seller}]",
            done(),
        ],
        difficulty="medium",
    )
