"""Shopping tasks that need a fact from another site in the checkout."""

from agentkv_tasks.template import Draft, Draw, all_of
from agentkv_tasks.vwa75.shop import (
    EXPRESS,
    GIFT_WRAP,
    buy,
    draw_postcode,
    draw_product,
    draw_street,
    order_placed,
    order_text_includes,
    order_text_is,
    save_address,
)
from agentkv_tasks.vwa75.steps import choose, find_article, find_listing, write


def phone_for_the_courier(draw: Draw) -> Draft:
    """Enter a phone number in the checkout that appears only in a classifieds photo."""
    listing = draw.rng.choice(
        [one for one in draw.world.classifieds.listings if one.photo.kind == "phone"]
    )
    product, phone = draw_product(draw), listing.photo.fact
    return Draft(
        wordings=(
            "Read the phone number in the photo of the listing {{listing}} on the classifieds in "
            "the other tab. Then order one {{product}} in the shop by Express, with that phone "
            "number as the note for the courier.",
            "The classifieds in the other tab have the listing {{listing}}. Its photo shows a "
            "phone number. Order the {{product}} in the shop with shipping Express and type the "
            "phone number as the note for the courier.",
            "I want one {{product}} from the shop by Express. The note for the courier is a phone "
            "number: the one in the photo of the listing {{listing}} on the classifieds in the "
            "other tab. Look it up before the order.",
        ),
        unseen_wording=(
            "The courier should be able to call somebody. Could you read the phone number in the "
            "photo of the listing {{listing}} on the classifieds in the other tab, and then order "
            "one {{product}} in the shop by Express, with that number as the note for the courier?"
        ),
        values={"listing": listing.title, "product": product.name},
        start="__SHOPPING__ |AND| __CLASSIFIEDS__",
        check=all_of(
            *order_placed(draw, product),
            order_text_includes(draw, "shipping", "Express"),
            order_text_is(draw, "note", phone),
        ),
        solution=[
            "tab_focus [1]",
            *find_listing(listing.title),
            "tab_focus [0]",
            *buy(product),
            "click [link: Go to checkout]",
            EXPRESS,
            write("Note for the courier", phone),
            "click [button: Place order]",
        ],
        difficulty="hard",
        reads_image=True,
        turns_on=phone,
        memory_distance_pages=6,
        needs=[phone],
    )  # fmt: skip


def motto_for_the_courier(draw: Draw) -> Draft:
    """Enter a motto in the checkout that appears only in a wiki image."""
    town, product = draw.rng.choice(draw.world.wiki.towns), draw_product(draw)
    return Draft(
        wordings=(
            "Find {{town}} in the wiki and read the motto on its coat of arms. Then order one "
            "{{product}} in the shop in the other tab: payment Bank transfer, with gift wrap, and "
            "the motto as the note for the courier.",
            "The wiki shows the coat of arms of {{town}} with its motto. Order the {{product}} in "
            "the shop in the other tab with gift wrap, pay by Bank transfer, and type that motto "
            "as the note for the courier.",
            "One {{product}} should come from the shop in the other tab, with gift wrap and paid "
            "by Bank transfer. What is the note for the courier? The motto on the coat of arms of "
            "{{town}}, which the wiki shows: read it before the order.",
        ),
        unseen_wording=(
            "I need a present for somebody from {{town}}. Would you read the motto on the coat of "
            "arms of this town in the wiki, and then order one {{product}} in the shop in the "
            "other tab? It should have gift wrap, the payment is Bank transfer, and the motto is "
            "the note for the courier."
        ),
        values={"town": town.name, "product": product.name},
        start="__WIKIPEDIA__ |AND| __SHOPPING__",
        check=all_of(
            *order_placed(draw, product),
            order_text_is(draw, "payment", "Bank transfer"),
            order_text_is(draw, "gift-wrap", "$2.50"),
            order_text_is(draw, "note", town.motto),
        ),
        solution=[
            find_article(town.name),
            "tab_focus [1]",
            *buy(product),
            "click [link: Go to checkout]",
            choose("Payment", "Bank transfer"),
            GIFT_WRAP,
            write("Note for the courier", town.motto),
            "click [button: Place order]",
        ],
        difficulty="hard",
        reads_image=True,
        turns_on=town.motto,
        memory_distance_pages=7,
        needs=[town.motto],
    )  # fmt: skip


def gift_to_a_mayor(draw: Draw) -> Draft:
    """Send an order to an address made from a name and a birthplace in two wiki articles."""
    wiki = draw.world.wiki
    mayor = wiki.figure(draw.rng.choice(wiki.towns).mayor)
    town = next(town for town in wiki.towns if town.mayor == mayor.name)
    product, house, code = draw_product(draw), draw_street(draw), draw_postcode(draw)
    return Draft(
        wordings=(
            "Find {{town}} in the wiki, read the name of its mayor, and open the mayor's article "
            "to read the birthplace. Then order one {{product}} in the shop in the other tab and "
            "send it to a new address: label Mayor, the mayor's name, {{house}}, the birthplace "
            "as the town, postcode {{code}}.",
            "Who is the mayor of {{town}}, and what is the mayor's birthplace? The wiki has both. "
            "Order the {{product}} in the shop in the other tab for the mayor: a new address with "
            "the label Mayor, the mayor's name, {{house}}, the birthplace as the town and the "
            "postcode {{code}}.",
            "The mayor of {{town}} should get one {{product}} from the shop in the other tab. The "
            "address is a new one: label Mayor, the mayor's name, {{house}}, as the town the "
            "mayor's birthplace, postcode {{code}}. Look up the name and the birthplace in the "
            "wiki before the order.",
        ),
        unseen_wording=(
            "I would like to surprise the mayor of {{town}}. Could you look up the mayor's name "
            "and birthplace in the wiki, and then order one {{product}} in the shop in the other "
            "tab? It goes to a new address: label Mayor, the mayor's name, {{house}}, the "
            "birthplace as the town, postcode {{code}}."
        ),
        values={"town": town.name, "product": product.name, "house": house, "code": code},
        start="__WIKIPEDIA__ |AND| __SHOPPING__",
        check=all_of(
            *order_placed(draw, product),
            order_text_is(draw, "address", f"{mayor.name}, {house}, {code} {mayor.birthplace}"),
        ),
        solution=[
            find_article(town.name),
            f"click [link: {mayor.name}]",
            "tab_focus [1]",
            *buy(product),
            "click [link: Go to checkout]",
            "click [link: Add another address]",
            *save_address("Mayor", mayor.name, house, mayor.birthplace, code),
            choose("Send to", f"Mayor: {house}, {mayor.birthplace}"),
            "click [button: Place order]",
        ],
        difficulty="hard",
        memory_distance_pages=9,
        needs=[mayor.name, mayor.birthplace],
    )  # fmt: skip
