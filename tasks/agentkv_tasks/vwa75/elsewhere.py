"""Short navigation tasks on the wiki, the forum and the classifieds."""

from agentkv_tasks.template import Draft, Draw, reaches
from agentkv_tasks.vwa75.routes import article_url, find_seller
from agentkv_tasks.vwa75.steps import done, find_article


def birthplace_of_a_founder(draw: Draw) -> Draft:
    """Open the birthplace of a company's founder."""
    wiki = draw.world.wiki
    maker = draw.rng.choice(wiki.makers)
    founder = wiki.figure(maker.founder)
    return Draft(
        wordings=(
            "Open the wiki article about {{maker}}, then that about its founder, then that "
            "about the birthplace of the founder.",
            "Open the wiki article about the town in which the founder of {{maker}} was born.",
        ),
        values={"maker": maker.name},
        start="__WIKIPEDIA__",
        check=reaches(article_url(founder.birthplace)),
        solution=[
            find_article(maker.name),
            f"click [link: {founder.name}]",
            f"click [link: {founder.birthplace}]",
            done(),
        ],
        needs=[founder.name, founder.birthplace],
        difficulty="medium",
    )


def top_thread_of_a_board(draw: Draw) -> Draft:
    """Open the top thread of a board, which requires changing the sort order first."""
    board = draw.rng.choice(draw.world.forum.threads).board
    threads = [thread for thread in draw.world.forum.threads if thread.board == board]
    top = max(threads, key=lambda thread: thread.score)
    return Draft(
        wordings=(
            "Open the board {{board}} of the forum, sort it by Top and open the first thread.",
            "Which thread is the first under Top on the board {{board}} of the forum? Open it.",
        ),
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
        needs=[top.title],
        difficulty="medium",
    )


def page_of_a_seller(draw: Draw) -> Draft:
    """Start at the home page and open the page of a listing's seller."""
    listing = draw.rng.choice(draw.world.classifieds.listings)
    return Draft(
        wordings=(
            "Who sells the {{listing}} on the classifieds? Open the page of that seller.",
            "Go to the classifieds, find the {{listing}} and open the page of its seller.",
        ),
        values={"listing": listing.title},
        start="__HOMEPAGE__",
        check=reaches(f"__CLASSIFIEDS__/seller/{listing.seller}"),
        solution=["click [link: Classifieds]", *find_seller(listing), done()],
        needs=[listing.seller],
        difficulty="medium",
    )
