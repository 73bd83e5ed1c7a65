"""Long questions whose answer lists facts from many pages."""

from agentkv_tasks.template import Draft, Draw, TaskTemplate, all_of, says
from agentkv_tasks.vwa75.steps import done, find_article, find_listing, find_product, find_thread
from agentkv_tasks.vwa_long import remembered
from agentkv_tasks.vwa_long.errands import talk
from agentkv_tasks.vwa_long.rounds import (
    draw_distinct,
    join_facts,
    number_placeholders,
    unique_facts,
)

_IN_ORDER = "in this order, with a comma and a space between two."


def hobbies_behind_four_festivals(draw: Draw) -> Draft:
    """Follow four articles to each of four facts, then comment on six talk pages."""
    wiki = draw.world.wiki
    festivals = draw.rng.sample(wiki.festivals, 4)
    names, values = number_placeholders("festival", [festival.name for festival in festivals])
    steps, hobbies = list[str](), list[str]()
    for festival in festivals:
        birthplace = wiki.figure(festival.organiser).birthplace
        mayor = wiki.town(birthplace).mayor
        steps += [find_article(festival.name), f"click [link: {festival.organiser}]",
                  f"click [link: {birthplace}]", f"click [link: {mayor}]"]  # fmt: skip
        hobbies.append(wiki.figure(mayor).hobby)
    remark = draw.rng.choice(("A map would help.", "Is this the whole story?", "Nice article."))
    titles = [*(each.name for each in wiki.dishes), *(each.name for each in wiki.landmarks)]
    comments = talk(draw.rng.sample(titles, 6), remark)
    return Draft(
        wordings=(
            f"For each of the festivals {names} in the wiki, open the organiser, then the "
            "birthplace of the organiser, then the mayor of that town, and read the hobby. After "
            "that write the comment {{remark}} on the talk page of each of these articles: "
            f"{comments.names}. Answer with the four hobbies, {_IN_ORDER}",
            f"What do the mayors like to do? Take the festivals {names} in the wiki; each has an "
            "organiser, the organiser a birthplace, and the birthplace a mayor with a hobby. Read "
            f"all four, then comment {{{{remark}}}} on the talk pages of {comments.names}. The "
            f"answer has the four hobbies {_IN_ORDER}",
            f"I want four hobbies as the answer, {_IN_ORDER} They belong to the mayors of the "
            f"birthplaces of the organisers of {names}, all of them in the wiki. Between reading "
            f"and answering, six talk pages get the comment {{{{remark}}}}: {comments.names}.",
        ),
        unseen_wording=f"A riddle: each of {names} has an organiser, who was born in a "
        "town, which has a mayor, who has a hobby. Could you find the four hobbies in the wiki, "
        f"then leave {{{{remark}}}} on the talk pages of {comments.names}, and answer with the "
        f"hobbies? They should stand {_IN_ORDER}",
        values={**values, **comments.values, "remark": f'"{remark}"'},
        start="__WIKIPEDIA__",
        check=all_of(comments.check, says(exact_match=join_facts(hobbies))),
        solution=[*steps, *comments.steps, done(join_facts(hobbies))],
        difficulty="hard",
        needs=unique_facts(hobbies),
        memory_distance_pages=36,
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
            f"Read the code on the poster of each of these forum threads: {threads_named}. Then "
            "read the phone number in the photo of each of these listings in the classifieds in "
            f"the other tab: {listings_named}. Answer with the seven codes and the six phone "
            f"numbers, {_IN_ORDER}",
            f"Which codes are on the posters of the forum threads {threads_named}, and which phone "
            f"numbers are in the photos of the listings {listings_named} in the classifieds in the "
            f"other tab? Answer with the seven codes, then the six numbers, {_IN_ORDER}",
            f"Thirteen pictures. On the forum, the posters of {threads_named}: a code each. In the "
            f"classifieds in the other tab, the photos of {listings_named}: a phone number each. "
            f"The answer should hold the codes and then the numbers, {_IN_ORDER}",
        ),
        unseen_wording="I cannot read small print. Would you read me the codes on the posters in "
        f"the forum threads {threads_named}, and the phone numbers in the photos of "
        f"{listings_named} in the classifieds in the other tab? I need the seven codes first, then "
        f"the six numbers, {_IN_ORDER}",
        values={**values, **more},
        start="__REDDIT__ |AND| __CLASSIFIEDS__",
        check=says(exact_match=join_facts(facts)),
        solution=[*steps, done(join_facts(facts))],
        difficulty="hard",
        reads_image=True,
        turns_on=facts[0],
        needs=unique_facts(facts),
        memory_distance_pages=25,
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
            f"Read in the shop in which town each of these products is made: {names}. Then look up "
            "the eight towns in the wiki in the other tab and read the market day of each. Answer "
            f"with the eight market days, {_IN_ORDER}",
            f"On which days is there a market where {names} are made? The shop names the towns, "
            "the wiki in the other tab their market days. Read the eight towns first. Answer with "
            f"the eight days, {_IN_ORDER}",
            f"I want to visit the markets of the towns in which {names} from the shop are made. So "
            "the answer should be the market days of these eight towns in the wiki in the other "
            f"tab, {_IN_ORDER} All eight product pages come before the first town.",
        ),
        unseen_wording="I travel to where my things come from. Could you look up in the shop in "
        f"which towns {names} are made, and after that in the wiki in the other tab on which day "
        f"each of the eight towns has its market? Please answer with the days, {_IN_ORDER}",
        values=values,
        start="__SHOPPING__ |AND| __WIKIPEDIA__",
        check=says(exact_match=join_facts(days)),
        solution=[*steps, done(join_facts(days))],
        difficulty="hard",
        needs=unique_facts((town.name for town in towns), days),
        memory_distance_pages=16,
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
            "Open the page of the seller of each of these listings in the classifieds and read "
            f"Name and Home town: {names}. Then look up these towns in the wiki in the other tab "
            "and read the mayor of each. Answer with the names of the six sellers, then the names "
            f"of the six mayors, all {_IN_ORDER}",
            f"Who sells {names} in the classifieds, and who is the mayor of each seller's home "
            "town, according to the wiki in the other tab? Answer with the names of the six "
            f"sellers and after them the names of the six mayors, {_IN_ORDER}",
            f"The answer should be twelve names, {_IN_ORDER} The first six are the sellers of "
            f"{names}, as their pages in the classifieds say. The other six are the mayors of the "
            "sellers' home towns, as the wiki in the other tab says.",
        ),
        unseen_wording="I invite everybody who sold me something, and their mayors. Will you find "
        f"out who the sellers of {names} are and in which towns they live, in the classifieds, and "
        "then who the mayors of those towns are, in the wiki in the other tab? Please give me the "
        f"six sellers first and the six mayors after them, {_IN_ORDER}",
        values=values,
        start="__CLASSIFIEDS__ |AND| __WIKIPEDIA__",
        check=says(exact_match=join_facts(answer)),
        solution=[*steps, done(join_facts(answer))],
        difficulty="hard",
        needs=unique_facts((town.name for town in towns), answer),
        memory_distance_pages=22,
    )


TEMPLATES: tuple[TaskTemplate, ...] = (
    TaskTemplate(remembered.founder_of_the_first_company, 2),
    TaskTemplate(remembered.points_before_my_votes, 2),
    TaskTemplate(remembered.rating_with_my_stars, 2),
    TaskTemplate(remembered.prices_before_the_sale, 2),
    TaskTemplate(remembered.code_in_the_first_letter, 2),
    TaskTemplate(hobbies_behind_four_festivals, 2),
    TaskTemplate(codes_and_phone_numbers),
    TaskTemplate(market_days_where_things_are_made),
    TaskTemplate(sellers_and_their_mayors),
)
