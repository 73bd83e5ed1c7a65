"""Short navigation tasks on the wiki, the forum and the classifieds."""

from agentkv_tasks.template import Draft, Draw, reaches
from agentkv_tasks.vwa75.routes import article_url, find_seller
from agentkv_tasks.vwa75.steps import find_article


def birthplace_of_a_founder(draw: Draw) -> Draft:
    """Open the birthplace of a company's founder."""
    wiki = draw.world.wiki
    maker = draw.rng.choice(wiki.makers)
    founder = wiki.figure(maker.founder)
    return Draft(
        wordings=(
            "Open the wiki article about {{maker}}, then the article about its founder, then the "
            "article about the birthplace of the founder.",
            "Open the wiki article about the town in which the founder of {{maker}} was born.",
            "Where was the founder of {{maker}} born? I want to read about that town in the wiki.",
        ),
        unseen_wording=(
            "I read about {{maker}} and became curious. Could you show me the wiki article about "
            "the town in which its founder was born?"
        ),
        values={"maker": maker.name},
        start="__WIKIPEDIA__",
        check=reaches(article_url(founder.birthplace)),
        solution=[
            find_article(maker.name),
            f"click [link: {founder.name}]",
            f"click [link: {founder.birthplace}]",
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
            "I want to read the thread that is the first on the forum's board {{board}}, sorted "
            "by Top.",
        ),
        unseen_wording=(
            "I have only a few minutes for the forum. Would you open the first thread of the "
            "board {{board}} for me, sorted by Top?"
        ),
        values={"board": board},
        start="__REDDIT__",
        check=reaches(f"__REDDIT__/thread/{top.id}"),
        solution=[
            "click [link: Boards]",
            f"click [link: {board}]",
            "click [link: Top]",
            f"click [link: {top.title}]",
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
            "I want to see the page of the person who sells the {{listing}} on the classifieds.",
        ),
        unseen_wording=(
            "The {{listing}} on the classifieds would suit me. Can you open the page of its seller?"
        ),
        values={"listing": listing.title},
        start="__HOMEPAGE__",
        check=reaches(f"__CLASSIFIEDS__/seller/{listing.seller}"),
        solution=["click [link: Classifieds]", *find_seller(listing)],
        needs=[listing.seller],
        difficulty="medium",
    )
