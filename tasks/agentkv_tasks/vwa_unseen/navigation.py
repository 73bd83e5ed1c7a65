"""Navigation tasks to pages that no other suite visits: talk pages, events, boards, filters."""

from agentkv_env.sites.home.content import month_of
from agentkv_tasks.template import Draft, Draw, TaskTemplate, reaches
from agentkv_tasks.vwa75.routes import article_url
from agentkv_tasks.vwa75.steps import choose, find_article, find_product, find_thread

_EVENTS_ON_A_PAGE = 6


def talk_page_of_a_mayor(draw: Draw) -> Draft:
    """Open the talk page of the article about a town's mayor."""
    town = draw.rng.choice(draw.world.wiki.towns)
    return Draft(
        wordings=(
            "Find {{town}} in the wiki, open the article about its mayor and go to the Talk page.",
            "What do people say about the mayor of {{town}}? Open the Talk page of the mayor's "
            "article in the wiki.",
            "I want to see the Talk page of the wiki article about the mayor of {{town}}.",
        ),
        unseen_wording=(
            "I heard there is a dispute about the mayor of {{town}}. Could you open the Talk page "
            "of the mayor's article in the wiki?"
        ),
        values={"town": town.name},
        start="__WIKIPEDIA__",
        check=reaches(f"__WIKIPEDIA__/talk/{town.mayor.replace(' ', '_')}"),
        solution=[find_article(town.name), f"click [link: {town.mayor}]", "click [link: Talk]"],
        needs=[town.mayor],
    )


def founder_of_the_maker_of_a_product(draw: Draw) -> Draft:
    """Follow links from a product to its brand, to the wiki and to the brand's founder."""
    product = draw.rng.choice(draw.world.shop.products)
    maker = next(one for one in draw.world.wiki.makers if one.name == product.brand)
    return Draft(
        wordings=(
            "Open the page of the {{product}} in the shop, then the page of its brand, then the "
            "brand in the wiki, and then the article about the founder.",
            "Who founded the company that makes the {{product}}? From its page in the shop a link "
            "leads to the brand, and from there one to the wiki. Open the founder's article.",
            "I want to read the article about the founder of the company that makes the "
            "{{product}}. The page of its brand in the shop has a link to the wiki.",
        ),
        unseen_wording=(
            "The {{product}} in the shop is so clever. Would you follow the links to its brand and "
            "to the wiki, and open the article about the founder of the company?"
        ),
        values={"product": product.name},
        start="__SHOPPING__",
        check=reaches(article_url(maker.founder)),
        solution=[
            *find_product(product.name),
            f"click [link: {product.brand}]",
            f"click [link: {product.brand} in the wiki]",
            f"click [link: {maker.founder}]",
        ],
        needs=[maker.founder],
        difficulty="medium",
    )


def oldest_comment_of_a_thread(draw: Draw) -> Draft:
    """Sort the comments of a thread and open the page of the author of the first."""
    me, choices = draw.world.me.handle, []
    for thread in draw.world.forum.threads:
        top = [comment for comment in thread.comments if comment.parent is None]
        oldest = min(top, key=lambda comment: (-comment.minutes_ago, comment.id))
        best = max(top, key=lambda comment: comment.score)
        if oldest is not best and oldest.author != me:
            choices.append((thread, oldest))
    thread, oldest = draw.rng.choice(choices)
    return Draft(
        wordings=(
            "Open the forum thread {{thread}}, sort its comments by Oldest first, and open the "
            "page of the person who wrote the first one.",
            "Who wrote the oldest comment in the forum thread {{thread}}? Open the page of that "
            "person.",
            "I want to see the page of the person whose comment in the thread {{thread}} is on "
            "top when the comments stand Oldest first.",
        ),
        unseen_wording=(
            "Somebody answered the forum thread {{thread}} very quickly. Can you sort the comments "
            "by Oldest first and open the page of the person who wrote the first one?"
        ),
        values={"thread": thread.title},
        start="__REDDIT__",
        check=reaches(f"__REDDIT__/user/{oldest.author}"),
        solution=[
            *find_thread(thread.title),
            "click [link: Oldest first]",
            f"click [link: {oldest.author}]",
        ],
        needs=[oldest.author],
        difficulty="medium",
    )


def moderator_of_a_board(draw: Draw) -> Draft:
    """Open the page of the first moderator of a board."""
    charter = draw.rng.choice(draw.world.forum.charters)
    moderator = charter.moderators[0]
    return Draft(
        wordings=(
            "Open the board {{board}} of the forum and About this board. Then open the page of the "
            "first moderator.",
            "Who is the first moderator of the board {{board}} on the forum? Open the page of this "
            "person.",
            "I want to see the page of the first of the moderators of the forum's board {{board}}; "
            "About this board has their names.",
        ),
        unseen_wording=(
            "I have a complaint about the board {{board}} on the forum. Could you open About this "
            "board and go to the page of the first moderator?"
        ),
        values={"board": charter.board},
        start="__REDDIT__",
        check=reaches(f"__REDDIT__/user/{moderator}"),
        solution=[
            "click [link: Boards]",
            f"click [link: {charter.board}]",
            "click [link: About this board]",
            f"click [link: {moderator}]",
        ],
        needs=[moderator],
    )


def cheapest_listing_in_a_town(draw: Draw) -> Draft:
    """Filter all listings by town, sort them by price and open the first."""
    by_town: dict[str, int] = {}
    listings = {listing.id: listing for listing in draw.world.classifieds.listings}
    for listing in sorted(listings.values(), key=lambda one: one.price):
        by_town.setdefault(listing.town, listing.id)
    town, number = draw.rng.choice(list(by_town.items()))
    title = listings[number].title
    return Draft(
        wordings=(
            "Open All listings on the classifieds, choose the town {{town}}, sort by Price: low to "
            "high, and open the first listing.",
            "Which listing from {{town}} is the cheapest on the classifieds? Filter All listings "
            "by this town, sort by Price: low to high, and open it.",
            "I want to see the page of the cheapest thing that the classifieds have in {{town}}. "
            "All listings can be filtered by town and sorted by Price: low to high.",
        ),
        unseen_wording=(
            "I live in {{town}} and have little money. Would you filter All listings on the "
            "classifieds by this town, sort by Price: low to high, and open the first listing?"
        ),
        values={"town": town},
        start="__CLASSIFIEDS__",
        check=reaches(f"__CLASSIFIEDS__/listing/{number}"),
        solution=[
            "click [link: All listings]",
            choose("Town", town),
            choose("Sort by", "Price: low to high"),
            "click [button: Apply]",
            f"click [link: {title}]",
        ],
        needs=[title],
        difficulty="medium",
    )


def host_of_an_event_next_month(draw: Draw) -> Draft:
    """Open the page of the host of an event in next month's calendar."""
    home, now = draw.world.home, draw.world.now
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    event = draw.rng.choice(month_of(home, year, month)[:_EVENTS_ON_A_PAGE])
    return Draft(
        wordings=(
            "Open Events and the next month, open the event {{event}}, and go to the page of its "
            "host.",
            "Who is the host of the event {{event}} next month? Open the page of the host.",
            "I want to see the page of the person who is the host of the {{event}}. It is among "
            "the events of next month.",
        ),
        unseen_wording=(
            "I plan to go to the {{event}} next month. Can you find it under Events and open the "
            "page of its host?"
        ),
        values={"event": event.title},
        start="__HOMEPAGE__",
        check=reaches(f"__HOMEPAGE__/contact/{event.host.handle}"),
        solution=[
            "click [link: Events]",
            "click [link: Next month]",
            f"click [link: {event.title}]",
            f"click [link: {event.host.name}]",
        ],
        needs=[event.host.name],
    )


TEMPLATES = (
    TaskTemplate(talk_page_of_a_mayor),
    TaskTemplate(moderator_of_a_board),
    TaskTemplate(host_of_an_event_next_month),
    TaskTemplate(oldest_comment_of_a_thread),
    TaskTemplate(founder_of_the_maker_of_a_product),
    TaskTemplate(cheapest_listing_in_a_town),
)
