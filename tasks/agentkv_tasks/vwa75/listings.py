"""Form tasks on the classifieds that need only the goal, and the checks that they succeeded."""

from agentkv_env.sites.classifieds.content import Listing
from agentkv_tasks.task import Evaluation
from agentkv_tasks.template import Draft, Draw, all_of, reaches, says, shows, text
from agentkv_tasks.vwa75.steps import done, find_listing, rewrite, write

_QUESTIONS = (
    "Is it still available?",
    "Can I see it on Friday?",
    "How old is it exactly?",
    "Do you have the manual?",
)
# Equal for a listing of the user and one of somebody else: only the page tells which it is.
_OTHER_PRICES = (
    "Open My listings and change the price of my {{listing}} to {{price}} dollars. "
    "Answer N/A if I have no such listing.",
    "My listing {{listing}} should cost {{price}} dollars: look for it under My listings and edit "
    "it. Answer N/A if it is not there.",
    "I want {{price}} dollars for the {{listing}}, one of My listings. Answer N/A if I have no "
    "listing of this name.",
)
_OTHER_PRICES_UNSEEN = (
    "I have thought about the price of my {{listing}} again. Could you open My listings and change "
    "it to {{price}} dollars? Please answer N/A if I have no such listing."
)


def others_listings(draw: Draw) -> list[Listing]:
    """Return the listings of other people."""
    me = draw.world.me.handle
    return [listing for listing in draw.world.classifieds.listings if listing.seller != me]


def my_listings(draw: Draw) -> list[Listing]:
    """Return the user's own listings."""
    me = draw.world.me.handle
    return [listing for listing in draw.world.classifieds.listings if listing.seller == me]


def message_sent(listing: Listing, words: str, phone: str) -> Evaluation:
    """Require the newest message to be about `listing` with this text and phone number."""
    page = "__CLASSIFIEDS__/messages"
    return all_of(
        shows(page, text(".about"), exact_match=listing.title),
        shows(page, text(".message-body"), exact_match=words),
        shows(page, text(".message-phone"), exact_match=phone),
    )


def ask_a_seller(draw: Draw) -> Draft:
    """Send a seller a question and a phone number."""
    listing = draw.rng.choice(others_listings(draw))
    question, phone = draw.rng.choice(_QUESTIONS), f"555 {draw.rng.randint(2222, 7999)}"
    return Draft(
        wordings=(
            "Send the seller of the {{listing}} the message {{question}} with my phone number "
            "{{phone}}.",
            "Contact the seller of the {{listing}} on the classifieds: message {{question}}, your "
            "phone {{phone}}.",
            "I want to ask something about the {{listing}} on the classifieds. The message to the "
            "seller is {{question}} and my phone is {{phone}}.",
        ),
        unseen_wording=(
            "I might buy the {{listing}} on the classifieds. Would you send its seller the "
            "message {{question}} and give {{phone}} as my phone?"
        ),
        values={"listing": listing.title, "question": f'"{question}"', "phone": phone},
        start="__CLASSIFIEDS__",
        check=message_sent(listing, question, phone),
        solution=[*find_listing(listing.title), "click [link: Contact seller]",
                  write("Message", question), write("Your phone", phone),
                  "click [button: Send message]"],
        difficulty="medium",
    )  # fmt: skip


def change_the_price_of_my_listing(draw: Draw) -> Draft:
    """Change one field of the user's own listing."""
    listing = draw.rng.choice(my_listings(draw))
    price = listing.price + draw.rng.choice((-9, 11, 20, 35))
    return Draft(
        wordings=_OTHER_PRICES,
        unseen_wording=_OTHER_PRICES_UNSEEN,
        values={"listing": listing.title, "price": price},
        start="__CLASSIFIEDS__",
        check=shows(f"__CLASSIFIEDS__/listing/{listing.id}", text(".listing-price"),
                    exact_match=f"${price}"),
        solution=["click [link: My listings]", f"click [link: Edit {listing.title}]",
                  *rewrite("Price in dollars", price), "click [button: Save changes]"],
    )  # fmt: skip


def price_of_a_listing_i_do_not_have(draw: Draw) -> Draft:
    """Ask for a change that is impossible because the listing belongs to somebody else."""
    listing = draw.rng.choice(others_listings(draw))
    price = listing.price + draw.rng.choice((-9, 11, 20, 35))
    return Draft(
        wordings=_OTHER_PRICES,
        unseen_wording=_OTHER_PRICES_UNSEEN,
        values={"listing": listing.title, "price": price},
        start="__CLASSIFIEDS__",
        check=all_of(says(exact_match="N/A"), reaches("__CLASSIFIEDS__/mine")),
        solution=["click [link: My listings]", done("N/A")],
    )


def comment_on_five_listings(draw: Draw) -> Draft:
    """Comment on five listings without missing one."""
    listings = draw.rng.sample(others_listings(draw), 5)
    question = draw.rng.choice(_QUESTIONS)
    rounds: list[str] = []
    for listing in listings:
        rounds += [*find_listing(listing.title), write("Comment", question),
                   "click [button: Post comment]"]  # fmt: skip
    values = {f"listing{number}": listing.title for number, listing in enumerate(listings, 1)}
    names = ", ".join(f"{{{{{key}}}}}" for key in values)
    return Draft(
        wordings=(
            f"Write the comment {{{{question}}}} under each of these listings: {names}.",
            f"Ask {{{{question}}}} in a comment under each of five listings: {names}.",
            f"These five listings should each have a comment from me: {names}. The comment is "
            "{{question}}",
        ),
        unseen_wording=(
            "I am looking for a bargain. Could you write the comment {{question}} under each "
            f"of these listings for me: {names}?"
        ),
        values={"question": f'"{question}"', **values},
        start="__CLASSIFIEDS__",
        check=all_of(
            *(
                shows(f"__CLASSIFIEDS__/listing/{x.id}", text("#comments"),
                      must_include=[f"{draw.world.me.handle}: {question}"])
                for x in listings
            )
        ),
        solution=rounds,
        difficulty="hard",
    )  # fmt: skip
