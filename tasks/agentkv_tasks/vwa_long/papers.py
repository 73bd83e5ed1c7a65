"""Long form tasks that end in a form for a fact of the first page."""

from agentkv_env.sites.forum.content import Thread
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draft, Draw, all_of, shows, text
from agentkv_tasks.vwa75.routes import article_url, find_author, switch_site
from agentkv_tasks.vwa75.steps import choose, find_listing, rewrite, write
from agentkv_tasks.vwa_long.errands import ask, comment, contact, messages_are, offer, rating
from agentkv_tasks.vwa_long.rounds import (
    MESSAGES,
    draw_distinct,
    draw_listings,
    draw_products,
    draw_threads,
    number_placeholders,
)


def bio_about_the_first_article(draw: Draw) -> Draft:
    """Put a name from the first page into the bio after eight comments."""
    festival = draw.rng.choice(draw.world.wiki.festivals)
    remark = draw.rng.choice(("Count me in.", "Not on a Sunday.", "Who brings the soup?"))
    comments = comment(draw_threads(draw, 8), remark)
    bio = f"I sing for {festival.organiser}."
    return Draft(
        wordings=(
            "Remember who organises the festival whose article is open. Then write the comment "
            f"{{{{remark}}}} in each of these forum threads: {comments.names}. At the end, change "
            "my bio on the forum to: I sing for, the name of the organiser, and a full stop.",
            f"On the forum, {{{{remark}}}} should stand as my comment in {comments.names}. When "
            "all eight are written, my bio there should read I sing for, followed by the name of "
            "the festival's organiser and a full stop. The festival is the one on the first page.",
            f"First the comments, each of them {{{{remark}}}}: {comments.names}. Then a new bio in "
            "the forum's settings, made of the words I sing for, the name of the person who "
            "organises the festival shown at the start, and a full stop.",
        ),
        unseen_wording="The organiser of this festival took me into the choir, so my bio on the "
        "forum has to change to: I sing for, that person's name, and a full stop. Before you get "
        f"to it, could you comment {{{{remark}}}} in each of these threads there: "
        f"{comments.names}?",
        values={**comments.values, "remark": f'"{remark}"'},
        start=article_url(festival.name),
        check=all_of(
            comments.check,
            shows(f"__REDDIT__/user/{draw.world.me.handle}", text(".bio"), exact_match=bio),
        ),
        solution=[*switch_site("Forum"), *comments.steps, "click [link: Settings]",
                  *rewrite("Bio", bio), "click [button: Save settings]"],
        needs=[festival.organiser],
        memory_distance_pages=len(comments.steps) + 4,
    )  # fmt: skip


def thread_about_the_first_landmark(draw: Draw) -> Draft:
    """Submit a thread with two facts of the first page after nine messages."""
    landmark = draw.rng.choice(draw.world.wiki.landmarks)
    message = draw.rng.choice(
        ("Is it still for sale?", "When can I see it?", "Does it come with papers?")
    )
    letters = contact(draw_listings(draw, 9), message)
    board = draw.rng.choice(draw.world.forum.boards).name
    page = f"__REDDIT__/thread/{len(draw.world.forum.threads) + 1}"
    return Draft(
        wordings=(
            "Read in the article that is open who designed the building and when it was built. "
            f"Then write {{{{message}}}} to the sellers of these listings in the classifieds, in "
            f"this order: {letters.names}. At the end, submit a thread to the board {{{{board}}}} "
            "of the forum: the title is the name of the architect, the body is the year.",
            f"Nine sellers in the classifieds get the message {{{{message}}}}, in this order: "
            f"{letters.names}. After them the forum gets a thread on the board {{{{board}}}}, with "
            "the architect of the first page's landmark as its title and the year in which it was "
            "built, nothing else, as its body.",
            "I want a thread on the forum's board {{board}} that has the name of the architect as "
            "its title and the year of building as its body, both of the landmark shown at the "
            "start. But first "
            f"the sellers of {letters.names} in the classifieds should have the message "
            "{{message}} from me, in this order.",
        ),
        unseen_wording="I give a talk about this landmark. Could you first send {{message}} to the "
        f"sellers of {letters.names} in the classifieds, in this order? After that, please start "
        "a thread on the board {{board}} of the forum for me: its title is the architect's name, "
        "and its body is the year in which the landmark was built.",
        values={**letters.values, "message": f'"{message}"', "board": board},
        start=article_url(landmark.name),
        check=all_of(
            letters.check,
            shows(page, text(".thread h1"), exact_match=landmark.architect),
            shows(page, text(".thread-body"), exact_match=str(landmark.built)),
            shows(f"__REDDIT__/board/{board}?sort=new", text(".threads"),
                  must_include=[landmark.architect]),
        ),
        solution=[*switch_site("Classifieds"), *letters.steps, *switch_site("Forum"),
                  "click [link: Submit thread]", choose("Board", board),
                  write("Title", landmark.architect), write("Body", landmark.built),
                  "click [button: Submit]"],
        difficulty="medium",
        needs=[landmark.architect, str(landmark.built)],
        memory_distance_pages=len(letters.steps) + 6,
    )  # fmt: skip


def write_or_rate(draw: Draw) -> Draft:
    """Treat six sellers by a rule, then enter a phone number of the first page in a profile."""
    content, me = draw.world.classifieds, draw.world.me.handle
    contacts = [each for each in draw.world.home.contacts if each.person.handle != me]
    friend = draw.rng.choice(contacts)
    listings = draw_distinct(draw, draw_listings(draw, 50), lambda x: x.seller, 10)
    times = [content.seller(x.seller).answers_in for x in listings]
    speed = max(sorted(set(times)), key=times.count)
    quick = [x for x, time in zip(listings, times, strict=True) if time == speed][:3]
    slow = [x for x, time in zip(listings, times, strict=True) if time != speed]
    listings = draw.rng.sample([*quick, *slow[: 6 - len(quick)]], 6)
    message, words = draw.rng.choice(
        (("When can I come?", "Hard to reach."), ("Is it complete?", "Too slow for me."))
    )
    names, values = number_placeholders("listing", [x.title for x in listings])
    steps: list[str] = []
    for x in listings:
        steps += [*find_listing(x.title), f"click [link: {x.seller}]"]
        if x in quick:
            steps += ["go_back", "click [link: Contact seller]", write("Message", message),
                      "click [button: Send message]"]  # fmt: skip
        else:
            steps += rating(3, words)
    return Draft(
        wordings=(
            "Remember the phone number on the first page. Then open the page of the seller of each "
            f"of these listings in the classifieds, in this order: {names}. Whenever a seller "
            "answers within {{speed}}, write the message {{message}} about the listing; otherwise "
            "rate the seller with 3 stars and the words {{words}}. At the end, set the phone in my "
            "shop profile to that phone number.",
            "Rule for sellers in the classifieds: who answers within {{speed}} gets the message "
            "{{message}} about the listing, anybody else a rating of 3 stars with the words "
            f"{{{{words}}}}. It applies to the sellers of {names}, in this order; their own pages "
            "say how fast they answer. Last, the phone in my profile in the shop becomes the "
            "number of the person on the first page.",
            f"I want to deal with the sellers of {names} in the classifieds, in this order. Those "
            "whose page promises an answer within {{speed}} should have the message {{message}} "
            "about the listing, and the others 3 stars and {{words}} as a rating. When all six are "
            "done, my profile in the shop should have the phone number shown at the start.",
        ),
        unseen_wording="I am tired of slow sellers. Would you look up how fast the sellers of "
        f"{names} answer, in this order? If a page in the classifieds says within {{{{speed}}}}, "
        "write {{message}} about the listing, and if it says anything else, leave 3 stars and "
        "{{words}}. I share a phone with the person on this first page from now on, so please "
        "enter that number in my shop profile when you are done with them.",
        values={**values, "speed": speed, "message": f'"{message}"', "words": f'"{words}"'},
        start=f"__HOMEPAGE__/contact/{friend.person.handle}",
        check=all_of(
            messages_are([(x, message) for x in listings if x in quick]),
            *(
                shows(f"__CLASSIFIEDS__/seller/{x.seller}/ratings", text(".ratings tr:first-child"),
                      must_include=[me, "3 stars", words])
                for x in listings
                if x not in quick
            ),
            shows("__SHOPPING__/account", text("#profile-phone"), exact_match=friend.phone),
        ),
        solution=["click [link: Home]", "click [link: Classifieds]", *steps, *switch_site("Shop"),
                  "click [link: Account]", "click [link: Edit profile]",
                  *rewrite("Phone", friend.phone), "click [button: Save profile]"],
        difficulty="medium",
        needs=[friend.phone],
        memory_distance_pages=len(steps) + 7,
    )  # fmt: skip


def offers_and_a_street(draw: Draw) -> Draft:
    """Write a street of the first page to a forum member after eight offers."""
    first, *listings = draw_listings(draw, 9)
    (thread,) = draw_threads(draw, 1)
    offers = offer(listings, [x.price * draw.rng.choice((7, 8, 9)) // 10 for x in listings])
    subject = draw.rng.choice(("Where we meet", "The street", "Saturday"))
    return Draft(
        wordings=(
            "Remember the street on the first page. Then make these offers in the classifieds, in "
            f"this order: {offers.names}. After that, open the author of the forum thread "
            "{{thread}} and send a message with the subject {{subject}} that holds only the "
            "street.",
            f"Offers to make in the classifieds, in this order: {offers.names}. The author of "
            "{{thread}} on the forum then needs a message from me with the subject {{subject}}. "
            "Its text is the street where the thing on the first page is, and nothing else.",
            "I want to meet the author of the forum thread {{thread}} where the listing of the "
            "first page is: a message with the subject {{subject}} and only the street as its text "
            f"will do. These offers in the classifieds come first, in this order: {offers.names}.",
        ),
        unseen_wording="I have to tell the author of {{thread}} on the forum in which street this "
        "thing stands. Can you do that with a message, the subject {{subject}} and the street "
        "alone as its text? It has to wait for my offers in the classifieds, though, in this "
        f"order: {offers.names}.",
        values={**offers.values, "thread": thread.title, "subject": subject},
        start=f"__CLASSIFIEDS__/listing/{first.id}/place",
        check=all_of(offers.check, *_letter_sent(draw, thread, subject, first.spot.street)),
        solution=[*offers.steps, *switch_site("Forum"), *find_author(thread),
                  "click [link: Send a message]", write("Subject", subject),
                  write("Message", first.spot.street), "click [button: Send message]"],
        needs=[first.spot.street],
        memory_distance_pages=len(offers.steps) + 7,
    )  # fmt: skip


def _letter_sent(draw: Draw, thread: Thread, subject: str, body: str) -> list[Evaluation]:
    """Require a message with this subject and body to the author of `thread` as the only one."""
    page = f"__REDDIT__/message/{len(draw.world.forum.letters) + 1}"
    return [
        shows(page, text(".person"), exact_match=thread.author),
        shows(page, text("h1"), exact_match=subject),
        shows(page, text(".letter-body"), exact_match=body),
    ]


def complaint_about_the_first_order(draw: Draw) -> Draft:
    """Write to the shop about an order and a courier of the first page after ten questions."""
    delivered = [order for order in draw.world.shop.orders if order.status == "Delivered"]
    order = draw.rng.choice(delivered)
    question = draw.rng.choice(
        ("Is there a manual?", "Does it smell?", "Which tools does it take?")
    )
    questions = ask(draw_products(draw, 10), question)
    return Draft(
        wordings=(
            "The history on the first page has the number of an order and says who brought it. "
            f"Keep both in mind, and ask {{{{question}}}} about each of these products in the "
            f"shop: {questions.names}. Then write to the shop on the page Contact: topic My order, "
            "the number of that order in its field, and as message only the name of the person "
            "who brought it.",
            f"On the questions pages of {questions.names} in the shop, {{{{question}}}} should be "
            "asked once each. After that send the shop a message with the topic My order about the "
            "order shown at the start: its number belongs in the field for it, and the text is the "
            "name of the person who brought it, nothing more.",
            f"Same question ten times, {{{{question}}}}, one for each of these products: "
            f"{questions.names}. Then a message through Contact. Topic: My order. Number: the "
            "order on the first page. Text: just the name of whoever brought that order.",
        ),
        unseen_wording="I want to praise the person who brought this order, but I have ten "
        f"questions first. Could you ask {{{{question}}}} about {questions.names} in the shop? "
        "Then please use Contact to send a message on the topic My order, with the number of this "
        "order in the field for it, and with the person's name as the whole text.",
        values={**questions.values, "question": f'"{question}"'},
        start=f"__SHOPPING__/order/{order.number}/history",
        check=all_of(
            questions.check,
            shows(MESSAGES, text(".message-topic"), exact_match="My order"),
            shows(MESSAGES, text(".message-order"), exact_match=str(order.number)),
            shows(MESSAGES, text(".message-text"), exact_match=order.courier),
        ),
        solution=[*questions.steps, "click [link: Contact]", choose("Topic", "My order"),
                  write("Order number or tracking code", order.number),
                  write("Message", order.courier), "click [button: Send message]"],
        difficulty="medium",
        needs=[str(order.number), order.courier],
        memory_distance_pages=len(questions.steps) + 2,
    )  # fmt: skip
