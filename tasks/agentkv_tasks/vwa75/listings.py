"""Tasks that write on the classifieds: listings, letters to sellers, comments. Part of `form`."""

from agentkv_env.sites.classifieds.content import Category, Listing
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draft, Draw, all_of, shows
from agentkv_tasks.vwa75.steps import choose, done, find_article, find_listing, rewrite, write

_COMMENTS = "document.querySelector('#comments').innerText"
_QUESTIONS = (
    "Is it still available?",
    "Can I see it on Friday?",
    "How old is it exactly?",
    "Do you have the manual?",
)


def _text(selector: str) -> str:
    return f"document.querySelector('{selector}').innerText"


def _foreign(draw: Draw) -> list[Listing]:
    me = draw.world.me.handle
    return [listing for listing in draw.world.classifieds.listings if listing.seller != me]


def ask_a_seller(draw: Draw) -> Draft:
    """A letter with a question and a phone number."""
    listing = draw.rng.choice(_foreign(draw))
    question, phone = draw.rng.choice(_QUESTIONS), f"555 {draw.rng.randint(2222, 7999)}"
    return Draft(
        intent="Send the seller of the {{listing}} the message {{question}} "
        "with my phone number {{phone}}.",
        values={"listing": listing.title, "question": f'"{question}"', "phone": phone},
        start="__CLASSIFIEDS__",
        check=all_of(
            _sent(listing, question),
            shows("__CLASSIFIEDS__/messages", _text(".message-phone"), exact_match=phone),
        ),
        solution=[*find_listing(listing.title), "click [link: Contact seller]",
                  write("Message", question), write("Your phone", phone),
                  "click [button: Send message]", done()],
        difficulty="medium",
    )  # fmt: skip


def tell_a_seller_the_serial_number(draw: Draw) -> Draft:
    """The number is only in the photo; the form is on the next page."""
    listing = draw.rng.choice([x for x in _foreign(draw) if x.photo.kind == "serial"])
    serial = listing.photo.fact
    return Draft(
        intent=draw.rng.choice(
            (
                "Send the seller of the {{listing}} the serial number in its photo as a message.",
                "Write to the seller of the {{listing}}: the message is the serial "
                "number in its photo.",
            )
        ),
        values={"listing": listing.title},
        start="__CLASSIFIEDS__",
        check=_sent(listing, serial),
        solution=[*find_listing(listing.title), "click [link: Contact seller]",
                  write("Message", serial), "click [button: Send message]", done()],
        difficulty="medium",
        reads_image=True,
        turns_on=serial,
        memory_distance_pages=1,
    )  # fmt: skip


def _sent(listing: Listing, words: str) -> Evaluation:
    """The newest letter is about `listing` and holds `words`."""
    return all_of(
        shows("__CLASSIFIEDS__/messages", _text(".about"), exact_match=listing.title),
        shows("__CLASSIFIEDS__/messages", _text(".message-body"), must_include=[words]),
    )


def change_the_price_of_my_listing(draw: Draw) -> Draft:
    """One field of an own listing."""
    me = draw.world.me.handle
    listing = draw.rng.choice([x for x in draw.world.classifieds.listings if x.seller == me])
    price = listing.price + draw.rng.choice((-9, 11, 20, 35))
    return Draft(
        intent=draw.rng.choice(
            (
                "Change the price of my {{listing}} on the classifieds to {{price}} dollars.",
                "My {{listing}} should now cost {{price}} dollars. Edit the listing.",
            )
        ),
        values={"listing": listing.title, "price": price},
        start="__CLASSIFIEDS__",
        check=shows(f"__CLASSIFIEDS__/listing/{listing.id}", _text(".listing-price"),
                    exact_match=f"${price}"),
        solution=["click [link: My listings]", f"click [link: Edit {listing.title}]",
                  *rewrite("Price in dollars", price), "click [button: Save changes]", done()],
    )  # fmt: skip


def delete_my_listing(draw: Draw) -> Draft:
    """Gone for good; the others stay."""
    me = draw.world.me.handle
    mine = [x for x in draw.world.classifieds.listings if x.seller == me]
    listing = draw.rng.choice(mine)
    others = [other.title for other in mine if other is not listing]
    table = _text(".mine")
    return Draft(
        intent=draw.rng.choice(
            (
                "Delete my listing {{listing}} from the classifieds.",
                "My {{listing}} is sold. Delete the listing.",
            )
        ),
        values={"listing": listing.title},
        start="__CLASSIFIEDS__",
        check=all_of(
            shows("__CLASSIFIEDS__/mine", table, must_exclude=[listing.title]),
            shows("__CLASSIFIEDS__/mine", table, must_include=others),
        ),
        solution=["click [link: My listings]", f"click [link: Delete {listing.title}]",
                  "click [button: Delete for good]", done()],
    )  # fmt: skip


def save_a_listing(draw: Draw) -> Draft:
    """One button on the listing's page."""
    saved = draw.world.classifieds.saved
    listing = draw.rng.choice([x for x in _foreign(draw) if x.id not in saved])
    return Draft(
        intent=draw.rng.choice(
            (
                "Save the listing {{listing}} on the classifieds.",
                "Put the {{listing}} on my list of saved listings.",
            )
        ),
        values={"listing": listing.title},
        start="__CLASSIFIEDS__",
        check=shows("__CLASSIFIEDS__/saved", _text(".rows"), must_include=[listing.title]),
        solution=[*find_listing(listing.title), "click [button: Save listing]", done()],
    )


def comment_on_five_listings(draw: Draw) -> Draft:
    """The same thing five times over, with nothing forgotten."""
    listings = draw.rng.sample(_foreign(draw), 5)
    question = draw.rng.choice(_QUESTIONS)
    rounds: list[str] = []
    for listing in listings:
        rounds += [*find_listing(listing.title), write("Comment", question),
                   "click [button: Post comment]"]  # fmt: skip
    values = {f"listing{number}": listing.title for number, listing in enumerate(listings, 1)}
    names = ", ".join(f"{{{{{key}}}}}" for key in values)
    return Draft(
        intent=f"Write the comment {{{{question}}}} under each of these listings: {names}.",
        values={"question": f'"{question}"', **values},
        start="__CLASSIFIEDS__",
        check=all_of(
            *(
                shows(f"__CLASSIFIEDS__/listing/{x.id}", _COMMENTS,
                      must_include=[f"{draw.world.me.handle}: {question}"])
                for x in listings
            )
        ),
        solution=[*rounds, done()],
        difficulty="hard",
    )  # fmt: skip


def _posted(draw: Draw, **parts: str) -> Evaluation:
    """The listing posted first holds these parts, each under the class `listing-<part>`."""
    url = f"__CLASSIFIEDS__/listing/{len(draw.world.classifieds.listings) + 1}"
    return all_of(
        *(shows(url, _text(f".listing-{part}"), exact_match=text) for part, text in parts.items())
    )


def _category_of(draw: Draw) -> tuple[Category, str]:
    thing, slug = draw.rng.choice(
        (("canoe", "boats"), ("violin", "music"), ("bookcase", "furniture"), ("kite", "toys"))
    )
    return draw.world.classifieds.category(slug), thing


def post_a_listing(draw: Draw) -> Draft:
    """Every kind of field once."""
    category, thing = _category_of(draw)
    place = draw.rng.choice(draw.world.places)
    price, years = draw.rng.randint(12, 480), draw.rng.randint(2, 19)
    condition = draw.rng.choice(("Like new", "Used", "For parts"))
    title, text = f"Striped {thing}", f"It is {years} years old."
    return Draft(
        intent="Post a listing on the classifieds: title {{title}}, category {{category}}, "
        "price {{price}} dollars, town {{place}}, condition {{condition}}, "
        "description {{text}} I can deliver it.",
        values={"title": f'"{title}"', "category": category.name, "price": price, "place": place,
                "condition": condition, "text": f'"{text}"'},
        start="__CLASSIFIEDS__",
        check=_posted(draw, title=title, category=category.name, price=f"${price}", town=place,
                      condition=condition, description=text, delivery="possible"),
        solution=["click [link: Post a listing]", write("Title", title),
                  choose("Category", category.name), write("Price in dollars", price),
                  choose("Town", place), f"click [radio: {condition}]", write("Description", text),
                  "click [checkbox: I can deliver it]", "click [button: Publish listing]", done()],
        difficulty="medium",
    )  # fmt: skip


def sell_a_festival_ticket(draw: Draw) -> Draft:
    """Town and price come from the wiki in the other tab; the price is only on the poster."""
    festival = draw.rng.choice(draw.world.wiki.festivals)
    return Draft(
        intent="Post a listing on the classifieds with the title Festival ticket in the category "
        "Music, condition New. The town is where the {{festival}} takes place and the price is "
        "that of a ticket on its poster; the wiki in the other tab has both.",
        values={"festival": festival.name},
        start="__CLASSIFIEDS__ |AND| __WIKIPEDIA__",
        check=_posted(draw, title="Festival ticket", category="Music", condition="New",
                      town=festival.town, price=f"${festival.ticket}"),
        solution=["tab_focus [1]", find_article(festival.name), "tab_focus [0]",
                  "click [link: Post a listing]", write("Title", "Festival ticket"),
                  choose("Category", "Music"), write("Price in dollars", festival.ticket),
                  choose("Town", festival.town), "click [radio: New]",
                  "click [button: Publish listing]", done()],
        difficulty="hard",
        reads_image=True,
        turns_on=f"TICKETS {festival.ticket} DOLLARS",
        memory_distance_pages=5,
    )  # fmt: skip
