"""Long navigation tasks that return to a person or a page of the beginning after many errands."""

from agentkv_env.sites.home.content import Event, month_of
from agentkv_env.sites.home.pages import EVENTS_ON_A_PAGE
from agentkv_tasks.template import Draft, Draw, all_of, reaches, says, shows, text, texts
from agentkv_tasks.vwa75.routes import article_url, switch_site
from agentkv_tasks.vwa75.steps import done, find_article, find_listing, find_product
from agentkv_tasks.vwa_long.errands import saved_are, talk, upvote
from agentkv_tasks.vwa_long.rounds import (
    draw_listings,
    draw_threads,
    move_best_early,
    number_placeholders,
)

_STATES = texts(".state", "")


def mayor_of_the_first_town(draw: Draw) -> Draft:
    """Open the article about a mayor who was named on the first page, after fourteen votes."""
    town = draw.rng.choice(draw.world.wiki.towns)
    votes = upvote(draw_threads(draw, 14))
    return Draft(
        wordings=(
            "Look who is the mayor of the town whose article is open. Then go to the forum and "
            f"upvote these fourteen threads: {votes.names}. At the end, go back to the wiki and "
            "open the article about that mayor.",
            f"I want an upvote on each of these forum threads: {votes.names}. When they all have "
            "one, the wiki article about the mayor of the first town should be open, the town "
            "whose article is shown at the start.",
            f"On the forum, upvote {votes.names}. End on the wiki article about a person: the "
            "mayor named on the page that is open before all this.",
        ),
        unseen_wording="I have to introduce the mayor of this town tonight, but first my friends "
        f"need votes: {votes.names}. Could you upvote these forum threads and then open the wiki "
        "article about the mayor for me, the one of the town I have open now?",
        values=votes.values,
        start=article_url(town.name),
        check=all_of(votes.check, reaches(article_url(town.mayor))),
        solution=[*switch_site("Forum"), *votes.steps, *switch_site("Wiki"),
                  find_article(town.mayor)],
        needs=[town.mayor],
        memory_distance_pages=len(votes.steps) + 4,
    )  # fmt: skip


def board_by_its_readers(draw: Draw) -> Draft:
    """Compare all boards, subscribe to some by a rule, and end on the best one by its readers."""
    forum = draw.world.forum
    charters = list(forum.charters)
    draw.rng.shuffle(charters)
    most, sign = (("most", 1), ("fewest", -1))[draw.instance % 2]
    best = move_best_early(draw, charters, lambda charter: sign * charter.readers)
    year = sorted(charter.founded for charter in charters)[draw.rng.choice((3, 4))]
    names, values = number_placeholders("board", [charter.board for charter in charters])
    subscribed = set(forum.subscribed)
    steps: list[str] = []
    for charter in charters:
        steps += ["click [link: Boards]", f"click [link: {charter.board}]",
                  "click [link: About this board]"]  # fmt: skip
        if charter.founded <= year and charter.board not in subscribed:
            subscribed.add(charter.board)
            steps += ["click [link: Back to the board]", "click [button: Subscribe]"]
    start = draw.rng.choice(charters).board
    return Draft(
        wordings=(
            "Open the page About this board of each of these boards of the forum, in this order: "
            f"{names}. Whenever a board was founded in {{{{year}}}} or earlier and I do not follow "
            "it yet, subscribe to it; leave the other subscriptions alone. At the end, open the "
            "board that has the {{most}} readers, stay there, and answer with the number of "
            "readers.",
            f"Which of the boards {names} has the {{{{most}}}} readers? Their About pages say it, "
            "and also when each was founded. I want to be subscribed to all of them that were "
            "founded in {{year}} or before, on top of the boards I follow today. Finish on the "
            "board with the {{most}} readers and answer with their number.",
            f"Tour of the forum's About pages: {names}. Rule on the way: founded in {{{{year}}}} "
            "or earlier means subscribe, unless I am subscribed already; nothing else changes. "
            "Last page: the board with the {{most}} readers. Answer: how many it has.",
        ),
        unseen_wording="I like old boards. Would you look through the About pages of "
        f"{names} on the forum and subscribe me to every one founded in {{{{year}}}} or earlier "
        "that I do not follow yet? My other subscriptions are fine as they are. When you have seen "
        "them all, please stop on the board with the {{most}} readers and tell me how many there "
        "are.",
        values={**values, "year": year, "most": most},
        start=f"__REDDIT__/board/{start}",
        check=all_of(
            shows("__REDDIT__/boards", _STATES, exact_match="subscribed" * len(subscribed)),
            *(
                shows("__REDDIT__/boards", text(f"#board-{board} .state"), exact_match="subscribed")
                for board in sorted(subscribed)
            ),
            reaches(f"__REDDIT__/board/{best.board}"),
            says(exact_match=str(best.readers)),
        ),
        solution=[*steps, "click [link: Boards]", f"click [link: {best.board}]",
                  done(best.readers)],
        difficulty="medium",
        needs=[str(best.readers)],
        memory_distance_pages=len(steps) + 1 - steps.index(f"click [link: {best.board}]"),
    )  # fmt: skip


def contact_of_the_first_seller(draw: Draw) -> Draft:
    """Save listings by a rule and end on the contact page of the person of the first page."""
    content = draw.world.classifieds
    seller = draw.rng.choice([one for one in content.sellers if one.handle != draw.world.me.handle])
    phone = draw.world.home.contact(seller.handle)
    assert phone is not None, "everybody is in the contacts"
    listings = draw_listings(draw, 18, seller=seller.handle)
    wanted = [x for x in listings if x.delivery]
    names, values = number_placeholders("listing", [x.title for x in listings])
    steps: list[str] = []
    for x in listings:
        steps += find_listing(x.title)
        if x.delivery:
            steps.append("click [button: Save listing]")
    return Draft(
        wordings=(
            "Remember the name of the seller whose profile is open. Then open these listings: "
            f"{names}. Whenever delivery is possible, save the listing. At the end, look up that "
            "seller in the contacts of the home site, open the page about the person and answer "
            "with the phone number there.",
            f"Go through {names} in the classifieds and save those that can be delivered, no "
            "others. What is the phone number of the seller on the first page? The contacts of the "
            "home site have it; finish on the person's page there and answer with the number.",
            f"I want every listing saved that the seller delivers, out of these: {names}. After "
            "that the page of the person whose profile is open now, in the contacts of the home "
            "site, should be on the screen, and its phone number in the answer.",
        ),
        unseen_wording="I have no car, so only things that are delivered are any good to me. Could "
        f"you check {names} in the classifieds and save the ones with delivery? Then please find "
        "the seller I am looking at right now in the contacts of the home site, leave that page "
        "open and tell me the phone number on it.",
        values=values,
        start=f"__CLASSIFIEDS__/seller/{seller.handle}",
        check=all_of(
            saved_are(draw, wanted),
            reaches(f"__HOMEPAGE__/contact/{seller.handle}"),
            says(exact_match=phone.phone),
        ),
        solution=[*steps, "click [link: All sites]", "click [link: Contacts]",
                  f"type [textbox: Search contacts] [{seller.name}] [1]",
                  f"click [link: {seller.name}]", done(phone.phone)],
        difficulty="medium",
        needs=[seller.name],
        memory_distance_pages=len(steps) + 2,
    )  # fmt: skip


def products_of_the_first_order(draw: Draw) -> Draft:
    """Compare two products named on the first page, after comments on ten talk pages."""
    shop, wiki = draw.world.shop, draw.world.wiki
    order = draw.rng.choice([order for order in shop.orders if len(order.lines) == 2])
    one, other = (shop.products[number - 1] for number, _ in order.lines)
    titles = [*(each.name for each in wiki.festivals), *(each.name for each in wiki.dishes),
              *(each.name for each in wiki.landmarks)]  # fmt: skip
    remark = draw.rng.choice(
        ("The picture is too dark.", "A source is missing.", "Please check the year.")
    )
    round_ = talk(draw.rng.sample(titles, 10), remark)
    return Draft(
        wordings=(
            "Look at the two products of the order that is open. Then go to the wiki and write the "
            f"comment {{{{remark}}}} on the talk page of each of these articles: {round_.names}. "
            "Back in the shop, add both products of that order to the comparison, in its order, "
            "and end on the page of the second product.",
            f"Ten talk pages of the wiki need the comment {{{{remark}}}}: {round_.names}. When "
            "that is done, the shop should compare the two products of the order on the first "
            "page, the upper one added first, and show the page of the lower one.",
            "Comment {{remark}} on the talk pages of the wiki articles "
            f"{round_.names}. Then, in the shop, put the first and after it the second product of "
            "the order shown at the start into the comparison. Stop on the page of the second.",
        ),
        unseen_wording="I look after some articles and want to buy one of these two things again. "
        f"Could you write {{{{remark}}}} on the talk pages of {round_.names} in the wiki? Then "
        "please go back to the shop, add both products of this order to the comparison, the upper "
        "one first, and leave the page of the lower one open for me.",
        values={**round_.values, "remark": f'"{remark}"'},
        start=f"__SHOPPING__/order/{order.number}",
        check=all_of(
            round_.check,
            shows("__SHOPPING__/compare", texts("#compare th a"),
                  exact_match=f"{one.name} | {other.name}"),
            reaches(f"__SHOPPING__/product/{other.number}"),
        ),
        solution=[*switch_site("Wiki"), *round_.steps, *switch_site("Shop"),
                  *find_product(one.name), "click [button: Add to comparison]",
                  *find_product(other.name), "click [button: Add to comparison]",
                  f"click [link: {other.name}]"],
        difficulty="medium",
        needs=[one.name, other.name],
        memory_distance_pages=len(round_.steps) + 7,
    )  # fmt: skip


def host_of_the_first_event(draw: Draw) -> Draft:
    """Sign up for events, upvote threads, and end on the contact page of the first page's host."""
    home = draw.world.home
    first = draw.rng.choice(home.events)
    coming = [each for each in home.events if each.day >= draw.world.now.date()]
    events = draw.rng.sample([each for each in coming if each.host != first.host], 4)
    votes = upvote(draw_threads(draw, 9))
    names, values = number_placeholders("event", [event.title for event in events])
    steps = [step for event in events for step in _sign_up(draw, event)]
    going = sorted(events, key=lambda event: event.id)
    return Draft(
        wordings=(
            "Note the host and the time at which the event on the first page begins. Then sign up "
            f"for these four events: {names}. Then upvote these forum threads: {votes.names}. At "
            "the end, open the page of that host in the contacts of the home site, stay there and "
            "answer with the time.",
            f"Sign me up for {names}. After that the forum threads {votes.names} need an upvote "
            "each. Finish in the contacts of the home site, on the page of the person who hosts "
            "the event that is open now. When does that event begin? Answer with the time.",
            f"Events to sign up for: {names}. Threads to upvote on the forum: {votes.names}. Last "
            "page: the host of the event shown at the start, in the contacts of the home site. "
            "Answer: the time at which that event begins.",
        ),
        unseen_wording="I must call the host of this event about my coat, but not before the rest "
        f"is done. Could you sign me up for {names} and upvote {votes.names} on the forum? Then "
        "please find that host in the contacts of the home site, keep the page open and tell me at "
        "what time this first event begins.",
        values={**values, **votes.values},
        start=f"__HOMEPAGE__/event/{first.id}",
        check=all_of(
            shows("__HOMEPAGE__/going", texts("td a"),
                  exact_match=" | ".join(event.title for event in going)),
            votes.check,
            reaches(f"__HOMEPAGE__/contact/{first.host.handle}"),
            says(exact_match=first.begins),
        ),
        solution=[*steps, "click [link: Home]", "click [link: Forum]", *votes.steps,
                  "click [link: All sites]", "click [link: Contacts]",
                  f"type [textbox: Search contacts] [{first.host.name}] [1]",
                  f"click [link: {first.host.name}]", done(first.begins)],
        difficulty="medium",
        needs=[first.host.name, first.begins],
        memory_distance_pages=len(steps) + len(votes.steps) + 4,
    )  # fmt: skip


def _sign_up(draw: Draw, event: Event) -> list[str]:
    """Return the steps that find `event` in the calendar and sign up for it."""
    now = draw.world.now
    months = (event.day.year - now.year) * 12 + event.day.month - now.month
    of_month = month_of(draw.world.home, event.day.year, event.day.month)
    pages = of_month.index(event) // EVENTS_ON_A_PAGE
    return ["click [link: Events]", *["click [link: Next month]"] * months,
            *["click [link: Next page]"] * pages, f"click [link: {event.title}]",
            "click [button: Sign up]"]  # fmt: skip
