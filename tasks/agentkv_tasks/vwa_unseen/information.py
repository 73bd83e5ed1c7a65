"""Questions about pages that no other suite asks about: timetables, polls, ratings, contacts."""

from agentkv_tasks.template import Draft, Draw, TaskTemplate, says
from agentkv_tasks.vwa75.routes import join_facts, says_all
from agentkv_tasks.vwa75.steps import done, find_article, find_product, find_thread
from agentkv_tasks.vwa_unseen.cheapest import draw_cheapest, find_cheapest


def departures_of_a_bus(draw: Draw) -> Draft:
    """Answer with two times from a table that has a page of its own."""
    line = draw.rng.choice(draw.world.wiki.public.lines)
    # The article itself shows the first bus and the last one.
    bus = draw.rng.randrange(1, len(line.departures[0]) - 1)
    one, other = sorted(draw.rng.sample(range(len(line.stops)), 2))
    times = line.departures[one][bus], line.departures[other][bus]
    return Draft(
        wordings=(
            "Open {{line}} in the wiki and its Timetable. When is Bus {{bus}} in {{one}}, and when "
            "in {{other}}? Answer with the two times, joined by a comma.",
            "At what times does Bus {{bus}} of {{line}} stop in {{one}} and in {{other}}? The "
            "Timetable in the wiki says so. Answer with both times in this order, joined by a "
            "comma.",
            "I need two times from the wiki's Timetable of {{line}}, joined by a comma: Bus "
            "{{bus}} in {{one}}, and the same bus in {{other}}.",
        ),
        unseen_wording=(
            "We meet in {{one}} and travel to {{other}} with {{line}}. Could you open its "
            "Timetable in the wiki and tell me when Bus {{bus}} is in the first town and when in "
            "the second? Both times, joined by a comma, please."
        ),
        values={"line": line.name, "bus": bus + 1, "one": line.stops[one],
                "other": line.stops[other]},
        start="__WIKIPEDIA__",
        check=says_all(*times),
        solution=[find_article(line.name), "click [link: Timetable]", done(join_facts(*times))],
        needs=times,
    )  # fmt: skip


def winner_of_a_poll(draw: Draw) -> Draft:
    """Answer with the choice that has the most votes in a poll."""
    winners = [
        (thread.title, poll.answers[poll.votes.index(max(poll.votes))])
        for thread in draw.world.forum.threads
        if (poll := thread.extras.poll)
    ]
    title, winner = draw.rng.choice([pair for pair in winners if pair[1] not in pair[0]])
    return Draft(
        wordings=(
            "Which choice has the most votes in the poll of the forum thread {{thread}}? Show the "
            "results to see it. Answer with nothing but this choice.",
            "Open the forum thread {{thread}} and choose Show results at its poll. Answer with the "
            "choice that has the most votes, and nothing else.",
            "There is a poll in the forum thread {{thread}}. I want to know what most people "
            "chose: only the choice, without the votes.",
        ),
        unseen_wording=(
            "I missed the poll in the forum thread {{thread}}. Would you look at the results and "
            "tell me the choice with the most votes? Please answer with nothing else."
        ),
        values={"thread": title},
        start="__REDDIT__",
        check=says(exact_match=winner),
        solution=[*find_thread(title), "click [link: Show results]", done(winner)],
        needs=[winner],
    )


def rating_of_a_seller(draw: Draw) -> Draft:
    """Answer with what somebody wrote about the seller of the cheapest listing of a category."""
    category, listing = draw_cheapest(draw)
    rating = draw.rng.choice(draw.world.classifieds.seller(listing.seller).ratings)
    return Draft(
        wordings=(
            "Sort the category {{category}} of the classifieds by price, low to high, and open the "
            "first listing, then its seller and the Ratings. Answer with what {{author}} wrote "
            "there.",
            "What did {{author}} write in the Ratings of the person who sells the cheapest listing "
            "in the category {{category}} of the classifieds? Sort by price, low to high, to find "
            "it. Answer with the words.",
            "{{author}} has rated the seller of the cheapest listing in the category {{category}} "
            "of the classifieds, the first one sorted by price, low to high. I want to know the "
            "words of this rating.",
        ),
        unseen_wording=(
            "My friend {{author}} knows the person who sells the cheapest listing in the category "
            "{{category}} of the classifieds. Can you sort it by price, low to high, open the "
            "Ratings of that seller and tell me what my friend wrote?"
        ),
        values={"category": category, "author": rating.author},
        start="__CLASSIFIEDS__",
        check=says(must_include=[rating.body]),
        solution=[*find_cheapest(category, listing), "click [link: Ratings]", done(rating.body)],
        needs=[listing.seller, rating.body],
        difficulty="medium",
    )


def phone_of_the_author_of_a_notice(draw: Draw) -> Draft:
    """Answer with the phone number of the person who posted a notice."""
    home = draw.world.home
    notice = draw.rng.choice(home.notices)
    contact = next(one for one in home.contacts if one.person == notice.author)
    return Draft(
        wordings=(
            "Search the notices for {{subject}} and open it. Then open the page of the person who "
            "posted it, and answer with the phone number.",
            "What is the phone number of the person who posted the notice {{subject}}?",
            "I want to call whoever posted the notice {{subject}}. The notice leads to the person, "
            "and the person's page has the phone number.",
        ),
        unseen_wording=(
            "The notice {{subject}} concerns me. Could you find it under Notices and tell me the "
            "phone number of the person who posted it?"
        ),
        values={"subject": f'"{notice.subject}"'},
        start="__HOMEPAGE__",
        check=says(must_include=[contact.phone]),
        solution=[
            "click [link: Notices]",
            f"type [textbox: Search notices] [{notice.subject}] [1]",
            f"click [link: {notice.subject}]",
            f"click [link: {notice.author.name}]",
            done(contact.phone),
        ],
        needs=[notice.author.name, contact.phone],
        difficulty="medium",
    )


def item_codes_of_two_products(draw: Draw) -> Draft:
    """Answer with a row from the specifications of two products."""
    one, other = draw.rng.sample(draw.world.shop.products, 2)
    codes = [dict(draw.world.shop.detail(x).specifications)["Item code"] for x in (one, other)]
    return Draft(
        wordings=(
            "Open the Specifications of the {{one}} and read its item code, then those of the "
            "{{other}}. Answer with the two item codes, joined by a comma.",
            "Which item codes do the {{one}} and the {{other}} have? Look under Specifications in "
            "the shop. Answer with both in this order, joined by a comma.",
            "I need two item codes, joined by a comma: the code of the {{one}} and the code of the "
            "{{other}}. Both are in the shop, under Specifications.",
        ),
        unseen_wording=(
            "A repair shop wants to know something. Would you open the Specifications of the "
            "{{one}} and of the {{other}} in the shop and give me their item codes in this order, "
            "joined by a comma?"
        ),
        values={"one": one.name, "other": other.name},
        start="__SHOPPING__",
        check=says_all(*codes),
        solution=[
            *find_product(one.name),
            "click [link: Specifications]",
            *find_product(other.name),
            "click [link: Specifications]",
            done(join_facts(*codes)),
        ],
        needs=codes,
        difficulty="medium",
        memory_distance_pages=3,
    )


def phone_of_a_courier(draw: Draw) -> Draft:
    """Read who brought an order and look up the phone number on another site."""
    order = draw.rng.choice([one for one in draw.world.shop.orders if one.status == "Delivered"])
    contact = next(one for one in draw.world.home.contacts if one.person.name == order.courier)
    return Draft(
        wordings=(
            "Open my order {{order}} in the shop and its Status history, and read who brought it. "
            "Then search for this person in the Contacts on the home site and answer with the "
            "phone number.",
            "Who brought my shop order {{order}}, and what is this person's phone number? The "
            "Status history has the name, the Contacts on the home site have the number. Answer "
            "with the number.",
            "I want to call the person who brought my order {{order}} from the shop. The name is "
            "in its Status history; the number is in the Contacts, on the page with all sites.",
        ),
        unseen_wording=(
            "The person who brought my order {{order}} forgot a glove. Can you look up the name in "
            "the Status history of the order in the shop, then search the Contacts on the home "
            "site for it and tell me the phone number?"
        ),
        values={"order": order.number},
        start="__SHOPPING__",
        check=says(must_include=[contact.phone]),
        solution=[
            "click [link: Orders]",
            f"click [link: Order {order.number}]",
            "click [link: Status history]",
            "click [link: All sites]",
            "click [link: Contacts]",
            f"type [textbox: Search contacts] [{order.courier}] [1]",
            f"click [link: {order.courier}]",
            done(contact.phone),
        ],
        needs=[order.courier, contact.phone],
        difficulty="hard",
        memory_distance_pages=2,
    )


TEMPLATES = (
    TaskTemplate(departures_of_a_bus),
    TaskTemplate(winner_of_a_poll),
    TaskTemplate(phone_of_the_author_of_a_notice),
    TaskTemplate(rating_of_a_seller),
    TaskTemplate(item_codes_of_two_products),
    TaskTemplate(phone_of_a_courier),
)
