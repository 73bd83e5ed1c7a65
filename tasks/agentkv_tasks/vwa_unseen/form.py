"""Form tasks with forms that no other suite fills in: offers, ratings, private messages."""

from agentkv_env.sites.site import money
from agentkv_tasks.template import Draft, Draw, TaskTemplate, all_of, shows, text
from agentkv_tasks.vwa75.listings import my_listings, others_listings
from agentkv_tasks.vwa75.steps import choose, find_listing, find_product, write
from agentkv_tasks.vwa_unseen.cheapest import draw_cheapest, find_cheapest

_NOTES = ("I can come on Sunday.", "I pay in cash.", "It is for my sister.", "I live nearby.")
_PRAISE = ("Fair and fast.", "A pleasure to deal with.", "Just as promised.", "Kind and patient.")
_GREETINGS = ("Time for tea", "Water the plants", "Breathe slowly", "One thing at a time")


def accept_the_highest_offer(draw: Draw) -> Draft:
    """Accept the highest offer for one of the user's listings."""
    offers = list(enumerate(draw.world.classifieds.offers, start=1))
    most = max(sum(one.listing == x.id for _, one in offers) for x in my_listings(draw))
    listing = draw.rng.choice(
        [x for x in my_listings(draw) if sum(one.listing == x.id for _, one in offers) == most]
    )
    number, offer = max(
        ((number, one) for number, one in offers if one.listing == listing.id),
        key=lambda pair: pair[1].dollars,
    )
    return Draft(
        wordings=(
            "Open My offers and accept the highest offer that I received for my {{listing}}.",
            "Somebody wants my {{listing}}. Look under My offers who pays the most for it, and "
            "accept.",
            "I want to sell my {{listing}} to the person with the highest of the offers under My "
            "offers: press Accept there.",
        ),
        unseen_wording=(
            "I have waited long enough with my {{listing}}. Could you open My offers and accept "
            "the highest offer for it?"
        ),
        values={"listing": listing.title},
        start="__CLASSIFIEDS__",
        check=shows(
            "__CLASSIFIEDS__/offers",
            text(f"#offer-{number} .offer-state"),
            exact_match="accepted",
        ),
        solution=["click [link: My offers]", f"click [button: Accept {offer.buyer}]"],
        needs=[offer.buyer],
    )


def settings_of_the_home_site(draw: Draw) -> Draft:
    """Change a select, a text and a radio button in the settings of the home site."""
    town = draw.rng.choice([place for place in draw.world.places if place != draw.world.me.place])
    greeting, often = draw.rng.choice(_GREETINGS), draw.rng.choice(("Daily", "Weekly"))
    page = "__HOMEPAGE__/settings"
    return Draft(
        wordings=(
            "Open Settings: weather for {{town}}, greeting {{greeting}}, summary by mail "
            "{{often}}. Save the settings.",
            "Change the settings of the home site. The weather is for {{town}}, the greeting is "
            "{{greeting}}, and the summary by mail comes {{often}}.",
            "I want the weather for {{town}} and the greeting {{greeting}} on the home site, and a "
            "summary by mail: {{often}}. All three are under Settings.",
        ),
        unseen_wording=(
            "I am moving to {{town}}. Would you change my settings on the home site? I need the "
            "weather for this town, the greeting {{greeting}} and a summary by mail: {{often}}."
        ),
        values={"town": town, "greeting": f'"{greeting}"', "often": often},
        start="__HOMEPAGE__",
        check=all_of(
            shows(page, "document.querySelector('[name=town]').value", exact_match=town),
            shows(page, "document.querySelector('[name=greeting]').value", exact_match=greeting),
            shows(
                page,
                f"document.querySelector('[name=summary][value={often}]').checked",
                exact_match="true",
            ),
        ),
        solution=[
            "click [link: Settings]",
            choose("Weather for", town),
            write("Greeting", greeting),
            f"click [radio: {often}]",
            "click [button: Save settings]",
        ],
    )


def make_an_offer(draw: Draw) -> Draft:
    """Offer a price for a listing, with a note."""
    listing = draw.rng.choice([x for x in others_listings(draw) if not x.is_sold])
    dollars = draw.rng.randint(listing.price * 6 // 10 + 1, listing.price - 1)
    note = draw.rng.choice(_NOTES)
    made = "__CLASSIFIEDS__/offers"
    return Draft(
        wordings=(
            "Make an offer for the {{listing}}: {{dollars}} dollars, with the note {{note}}",
            "The seller of the {{listing}} on the classifieds should get an offer of {{dollars}} "
            "dollars from me. The note is {{note}}",
            "I want to buy the {{listing}} for {{dollars}} dollars. Make this offer on its page "
            "and add the note {{note}}",
        ),
        unseen_wording=(
            "The {{listing}} is a little too expensive for me. Can you make an offer of "
            "{{dollars}} dollars on the classifieds, with the note {{note}}?"
        ),
        values={"listing": listing.title, "dollars": dollars, "note": f'"{note}"'},
        start="__CLASSIFIEDS__",
        check=all_of(
            shows(made, text(".made"), must_include=[listing.title]),
            shows(made, text(".made .offer-dollars"), exact_match=f"${dollars}"),
            shows(made, text(".made .offer-note"), exact_match=note),
        ),
        solution=[
            *find_listing(listing.title),
            "click [button: Make an offer]",
            write("Your offer in dollars", dollars),
            write("Note", note),
            "click [button: Send offer]",
        ],
        difficulty="medium",
    )


def rate_a_seller(draw: Draw) -> Draft:
    """Rate the seller of the cheapest listing of a category with stars and a few words."""
    category, listing = draw_cheapest(draw)
    stars, words = draw.rng.choice((2, 3, 4, 5)), draw.rng.choice(_PRAISE)
    page = f"__CLASSIFIEDS__/seller/{listing.seller}/ratings"
    return Draft(
        wordings=(
            "Sort the category {{category}} of the classifieds by price, low to high, and rate the "
            "seller of the first listing with {{stars}} stars and the rating {{words}}",
            "Find the cheapest listing in the category {{category}} of the classifieds (sort by "
            "price, low to high). Open the page of its seller, then the Ratings, and send "
            "{{stars}} stars with the words {{words}}",
            "My rating of the person who sells the cheapest listing in the category {{category}} "
            "of the classifieds, the first one sorted by price, low to high, is {{words}} It "
            "should have {{stars}} stars.",
        ),
        unseen_wording=(
            "I bought the cheapest listing in the category {{category}} of the classifieds and "
            "promised to rate its seller. Could you sort the category by price, low to high, to "
            "find it, and give {{stars}} stars under Ratings, with the words {{words}}?"
        ),
        values={"category": category, "stars": stars, "words": f'"{words}"'},
        start="__CLASSIFIEDS__",
        check=all_of(
            shows(page, text(".rating-stars"), exact_match=f"{stars} stars"),
            shows(page, text(".rating-body"), exact_match=words),
        ),
        solution=[
            *find_cheapest(category, listing),
            "click [link: Ratings]",
            choose("Stars", f"{stars} stars"),
            write("Rating", words),
            "click [button: Send rating]",
        ],
        difficulty="medium",
        needs=[listing.seller],
    )


def redeem_a_gift_card(draw: Draw) -> Draft:
    """Redeem a gift card whose code appears only in its picture."""
    card = draw.rng.choice(draw.world.shop.gift_cards)
    return Draft(
        wordings=(
            "Open Gift cards in my account and read the code of the card from {{giver}}. Check the "
            "card and add it to the balance.",
            "I have a gift card from {{giver}} in the shop. Its code is in the picture under Gift "
            "cards: type it, press Check card, and add the card to my balance.",
            "The gift card from {{giver}} should be in my balance at the shop. My account shows "
            "its picture with the code to check.",
        ),
        unseen_wording=(
            "{{giver}} was so kind and gave me a gift card for the shop. Would you read its code "
            "under Gift cards in my account, check the card and add it to my balance?"
        ),
        values={"giver": card.giver},
        start="__SHOPPING__",
        check=shows(
            "__SHOPPING__/account/gift-cards", text("#balance"), exact_match=money(card.cents)
        ),
        solution=[
            "click [link: Account]",
            "click [link: Gift cards]",
            write("Gift card code", card.code),
            "click [button: Check card]",
            "click [button: Add to balance]",
        ],
        difficulty="hard",
        reads_image=True,
        turns_on=card.code,
        needs=[card.code],
    )


def price_in_a_private_message(draw: Draw) -> Draft:
    """Reply to a private message on the forum with a price from the shop."""
    forum = draw.world.forum
    product, letter = draw.rng.choice(draw.world.shop.products), draw.rng.choice(forum.letters)
    price = money(product.cents)
    page = f"__REDDIT__/message/{len(forum.letters) + 1}"
    return Draft(
        wordings=(
            "Read the price of the {{product}} in the shop. Then open the message {{subject}} in "
            "the inbox of the forum in the other tab, and reply with this price and nothing else.",
            "What does the {{product}} cost in the shop? Reply with only the price to the message "
            "{{subject}} in my forum inbox in the other tab.",
            "The person who sent me the message {{subject}} on the forum (other tab) should get a "
            "reply that consists of a price: the price of the {{product}} in the shop.",
        ),
        unseen_wording=(
            "I have a message {{subject}} in my inbox on the forum in the other tab and owe a "
            "reply. Can you look up the price of the {{product}} in the shop and send it as the "
            "reply, without any other words?"
        ),
        values={"product": product.name, "subject": f'"{letter.subject}"'},
        start="__SHOPPING__ |AND| __REDDIT__",
        check=all_of(
            shows(page, text(".person"), exact_match=letter.sender),
            shows(page, text(".letter-body"), exact_match=price),
        ),
        solution=[
            *find_product(product.name),
            "tab_focus [1]",
            "click [link: Inbox]",
            f"click [link: {letter.subject}]",
            "click [link: Reply]",
            write("Message", price),
            "click [button: Send message]",
        ],
        difficulty="hard",
        memory_distance_pages=4,
        needs=[price],
    )


TEMPLATES = (
    TaskTemplate(accept_the_highest_offer),
    TaskTemplate(settings_of_the_home_site),
    TaskTemplate(make_an_offer),
    TaskTemplate(rate_a_seller),
    TaskTemplate(redeem_a_gift_card),
    TaskTemplate(price_in_a_private_message),
)
