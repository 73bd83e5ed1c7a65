"""Long questions whose answer lists facts from many pages."""

from agentkv_tasks.template import Draft, Draw, Template, says
from agentkv_tasks.vwa75.steps import done, find_article, find_listing, find_product, find_thread
from agentkv_tasks.vwa_long.rounds import (
    MAX_STEPS,
    draw_distinct,
    join_facts,
    number_placeholders,
    unique_facts,
)

_IN_ORDER = "in this order, with a comma and a space between two."


def hobbies_behind_six_festivals(draw: Draw) -> Draft:
    """Follow four articles to each of six facts."""
    wiki = draw.world.wiki
    festivals = draw.rng.sample(wiki.festivals, 6)
    names, values = number_placeholders("festival", [festival.name for festival in festivals])
    steps, hobbies = list[str](), list[str]()
    for festival in festivals:
        birthplace = wiki.figure(festival.organiser).birthplace
        mayor = wiki.town(birthplace).mayor
        steps += [find_article(festival.name), f"click [link: {festival.organiser}]",
                  f"click [link: {birthplace}]", f"click [link: {mayor}]"]  # fmt: skip
        hobbies.append(wiki.figure(mayor).hobby)
    return Draft(
        wordings=(
            f"For each of these festivals in the wiki: {names}: open the organiser, then the "
            "birthplace of the organiser, then the mayor of that town, and read the hobby. Answer "
            f"with the six hobbies, {_IN_ORDER}",
        ),
        values=values,
        start="__WIKIPEDIA__",
        check=says(exact_match=join_facts(hobbies)),
        solution=[*steps, done(join_facts(hobbies))],
        difficulty="hard",
        needs=unique_facts(hobbies),
        memory_distance_pages=20,
        max_steps=MAX_STEPS,
    )


def codes_and_phone_numbers(draw: Draw) -> Draft:
    """Answer with the text of thirteen images on two sites."""
    posters = [(t, t.poster) for t in draw.world.forum.threads if t.poster is not None]
    threads = draw.rng.sample(posters, 7)
    listings = draw.rng.sample(
        [x for x in draw.world.classifieds.listings if x.photo.kind == "phone"], 6
    )
    threads_named, values = number_placeholders("thread", [thread.title for thread, _ in threads])
    listings_named, more = number_placeholders("listing", [x.title for x in listings])
    facts = [poster.code for _, poster in threads] + [x.photo.fact for x in listings]
    steps: list[str] = []
    for thread, _ in threads:
        steps += find_thread(thread.title)
    steps.append("tab_focus [1]")
    for x in listings:
        steps += find_listing(x.title)
    return Draft(
        wordings=(
            f"Read the code on the poster of each of these forum threads: {threads_named}. "
            "Then read the phone number in the photo of each of these listings in the classifieds: "
            f"{listings_named}. Answer with the seven codes and the six phone numbers, {_IN_ORDER}",
        ),
        values={**values, **more},
        start="__REDDIT__ |AND| __CLASSIFIEDS__",
        check=says(exact_match=join_facts(facts)),
        solution=[*steps, done(join_facts(facts))],
        difficulty="hard",
        reads_image=True,
        turns_on=facts[0],
        needs=unique_facts(facts),
        memory_distance_pages=25,
        max_steps=MAX_STEPS,
    )


def market_days_where_things_are_made(draw: Draw) -> Draft:
    """Read eight towns in the shop, then look them up in the wiki in the other tab."""
    products = draw_distinct(
        draw, draw.world.shop.products, lambda one: dict(one.facts)["Made in"], 8
    )
    towns = [draw.world.wiki.town(dict(one.facts)["Made in"]) for one in products]
    days = [town.market_day for town in towns]
    names, values = number_placeholders("product", [product.name for product in products])
    steps: list[str] = []
    for product in products:
        steps += find_product(product.name)
    steps.append("tab_focus [1]")
    steps += [find_article(town.name) for town in towns]
    return Draft(
        wordings=(
            f"Read in the shop in which town each of these products is made: {names}. Then "
            "look up the eight towns in the wiki in the other tab and read the market day of each. "
            f"Answer with the eight market days, {_IN_ORDER}",
        ),
        values=values,
        start="__SHOPPING__ |AND| __WIKIPEDIA__",
        check=says(exact_match=join_facts(days)),
        solution=[*steps, done(join_facts(days))],
        difficulty="hard",
        needs=unique_facts((town.name for town in towns), days),
        memory_distance_pages=16,
        max_steps=MAX_STEPS,
    )


def sellers_and_their_mayors(draw: Draw) -> Draft:
    """Read six names and home towns on the classifieds, then the towns' mayors in the wiki."""
    content, me = draw.world.classifieds, draw.world.me.handle
    foreign = [x for x in content.listings if x.seller != me]
    listings = draw_distinct(draw, foreign, lambda x: x.seller, 6)
    towns = [draw.world.wiki.town(content.seller(x.seller).town) for x in listings]
    answer = [content.seller(x.seller).name for x in listings] + [town.mayor for town in towns]
    names, values = number_placeholders("listing", [x.title for x in listings])
    steps: list[str] = []
    for x in listings:
        steps += [*find_listing(x.title), f"click [link: {x.seller}]"]
    steps.append("tab_focus [1]")
    steps += [find_article(town.name) for town in towns]
    return Draft(
        wordings=(
            "Open the page of the seller of each of these listings in the classifieds and "
            f"read Name and Home town: {names}. Then look up these towns in the wiki in the other tab "
            "and read the mayor of each. Answer with the names of the six sellers, then the names of "
            f"the six mayors, all {_IN_ORDER}",
        ),
        values=values,
        start="__CLASSIFIEDS__ |AND| __WIKIPEDIA__",
        check=says(exact_match=join_facts(answer)),
        solution=[*steps, done(join_facts(answer))],
        difficulty="hard",
        needs=unique_facts((town.name for town in towns), answer),
        memory_distance_pages=22,
        max_steps=MAX_STEPS,
    )


TEMPLATES: tuple[Template, ...] = (
    Template(hobbies_behind_six_festivals),
    Template(codes_and_phone_numbers),
    Template(market_days_where_things_are_made),
    Template(sellers_and_their_mayors),
)
