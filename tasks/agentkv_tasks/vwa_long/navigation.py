"""Long navigation tasks that compare many pages and return to the best one."""

from agentkv_env.sites.classifieds.content import Listing
from agentkv_tasks.template import Draft, Draw, TaskTemplate, all_of, reaches, says
from agentkv_tasks.vwa75.steps import done, find_article, find_listing, find_thread
from agentkv_tasks.vwa_long import trails
from agentkv_tasks.vwa_long.rounds import (
    draw_distinct,
    move_best_early,
    number_placeholders,
    unique_facts,
)


def mayor_from_the_highest_town(draw: Draw) -> Draft:
    """Compare eight mayors' birthplaces and open the mayor from the highest one."""
    wiki = draw.world.wiki

    def height(mayor: str) -> int:
        return wiki.town(wiki.figure(mayor).birthplace).elevation_m

    towns = draw.rng.sample(wiki.towns, 8)
    best = move_best_early(draw, towns, lambda town: height(town.mayor))
    # Two mayors may come from the same town; the check accepts either article.
    highest = [town.mayor for town in towns if height(town.mayor) == height(best.mayor)]
    articles = [f"__WIKIPEDIA__/wiki/{mayor.replace(' ', '_')}" for mayor in highest]
    names, values = number_placeholders("town", [town.name for town in towns])
    steps: list[str] = []
    for town in towns:
        birthplace = wiki.figure(town.mayor).birthplace
        steps += [find_article(town.name), f"click [link: {town.mayor}]",
                  f"click [link: {birthplace}]"]  # fmt: skip
    return Draft(
        wordings=(
            "For each of these towns open in the wiki the town, then its mayor, then the "
            f"birthplace of the mayor, and read the Elevation there: {names}. Then open the "
            "article about a mayor with the highest birthplace, stay there, and answer with that "
            "elevation as a number.",
            f"Which of the mayors of {names} was born highest above the sea? The wiki leads from "
            "each town to its mayor, from there to the birthplace, and that article has the "
            "Elevation. Finish on the article about that mayor and answer with the elevation as a "
            "number.",
            f"Eight towns of the wiki: {names}. Each has a mayor, and each mayor has a birthplace "
            "with an Elevation. I want the article about a mayor with the highest birthplace on "
            "the screen at the end, and that elevation, as a number, in the answer.",
        ),
        unseen_wording="My quiz asks which mayor was born highest above the sea. The candidates "
        f"are the mayors of {names}. Could you follow each of these towns in the wiki to its mayor "
        "and on to the birthplace, and compare the Elevation there? Please stop on the article "
        "about a mayor with the highest birthplace and tell me the elevation as a number.",
        values=values,
        start="__WIKIPEDIA__",
        check=all_of(
            reaches(" |OR| ".join(articles)),
            says(exact_match=str(height(best.mayor))),
        ),
        solution=[*steps, find_article(best.mayor), done(height(best.mayor))],
        difficulty="hard",
        needs=unique_facts([height(best.mayor)]),
        memory_distance_pages=3 * (len(towns) - 1 - towns.index(best)) + 2,
    )


def listing_of_the_busiest_seller(draw: Draw) -> Draft:
    """Compare eight sellers' pages and open the listing of the one with the most sales."""
    content, me = draw.world.classifieds, draw.world.me.handle

    def sales(listing: Listing) -> int:
        return content.seller(listing.seller).sales

    foreign = [x for x in content.listings if x.seller != me]
    listings = draw_distinct(draw, foreign, sales, 8)
    best = move_best_early(draw, listings, sales)
    names, values = number_placeholders("listing", [x.title for x in listings])
    steps: list[str] = []
    for x in listings:
        steps += [*find_listing(x.title), f"click [link: {x.seller}]"]
    return Draft(
        wordings=(
            "Open the page of the seller of each of these listings in the classifieds and read the "
            f"Sales: {names}. Then open the listing whose seller has the most sales, stay there, "
            "and answer with that number of sales.",
            f"Who has sold the most among the sellers of {names} in the classifieds? Their own "
            "pages have the row Sales. The listing of that seller, out of these eight, is the page "
            "to end on, and the number of sales is the answer.",
            f"Listings to choose from: {names}. The best one has the seller with the most "
            "Sales; the page of each seller in the classifieds says how many. I want to end up on "
            "the best one, with the number of sales as the answer.",
        ),
        unseen_wording=f"I like one of these as much as the other: {names}. Would you check on the "
        "page of each seller in the classifieds how many Sales there are, and then take me to the "
        "listing whose seller has the most? Please answer with that number as well.",
        values=values,
        start="__CLASSIFIEDS__",
        check=all_of(
            reaches(f"__CLASSIFIEDS__/listing/{best.id}"), says(exact_match=str(sales(best)))
        ),
        solution=[*steps, *find_listing(best.title), done(sales(best))],
        difficulty="medium",
        needs=unique_facts([sales(best)]),
        memory_distance_pages=3 * (len(listings) - 1 - listings.index(best)) + 2,
    )


def thread_of_the_oldest_member(draw: Draw) -> Draft:
    """Compare eight authors' pages and open the thread of the longest-standing member."""
    forum = draw.world.forum
    threads = draw_distinct(draw, forum.threads, lambda one: forum.member(one.author).joined, 8)
    best = move_best_early(draw, threads, lambda thread: -forum.member(thread.author).joined)
    year = forum.member(best.author).joined
    names, values = number_placeholders("thread", [thread.title for thread in threads])
    steps: list[str] = []
    for thread in threads:
        steps += [*find_thread(thread.title), f"click [link: {thread.author}]"]
    return Draft(
        wordings=(
            "Open the user page of the author of each of these forum threads and read since when "
            f"they are a member: {names}. Then open the thread of the one who joined first, stay "
            "there, and answer with the year.",
            f"Which author joined the forum first: {names}? Every user page says Member since and "
            "a year. The thread by the oldest member should be open at the end, and the year is "
            "the answer.",
            f"Eight threads of the forum: {names}. Their authors joined in different years, which "
            "their user pages show. End on the thread of the longest-standing author. Answer: the "
            "year this author joined.",
        ),
        unseen_wording="I want to thank whoever has been on the forum the longest. These threads "
        f"helped me: {names}. Will you look at the user page of each author for the year they "
        "joined, and open the thread by the one who came first? Please answer with that year.",
        values=values,
        start="__REDDIT__",
        check=all_of(reaches(f"__REDDIT__/thread/{best.id}"), says(exact_match=str(year))),
        solution=[*steps, *find_thread(best.title), done(year)],
        difficulty="medium",
        needs=unique_facts([year]),
        memory_distance_pages=3 * (len(threads) - 1 - threads.index(best)) + 2,
    )


TEMPLATES: tuple[TaskTemplate, ...] = (
    TaskTemplate(trails.mayor_of_the_first_town, 2),
    TaskTemplate(trails.board_by_its_readers, 2),
    TaskTemplate(trails.contact_of_the_first_seller, 2),
    TaskTemplate(trails.products_of_the_first_order, 2),
    TaskTemplate(trails.host_of_the_first_event, 2),
    TaskTemplate(mayor_from_the_highest_town),
    TaskTemplate(listing_of_the_busiest_seller, 2),
    TaskTemplate(thread_of_the_oldest_member, 2),
)
