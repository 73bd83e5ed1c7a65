"""Long questions whose answer combines facts from several pages."""

from agentkv_tasks.template import Draft, Draw
from agentkv_tasks.vwa75.routes import (
    draw_authors,
    draw_listings,
    draw_posters,
    draw_towns,
    find_author,
    find_seller,
    join_facts,
    mayor_birth_year,
    says_all,
)
from agentkv_tasks.vwa75.steps import done, find_article, find_listing, find_product, find_thread


def founded_of_eight_towns(draw: Draw) -> Draft:
    """Answer with the same infobox row of eight articles."""
    towns = draw_towns(draw, 8)
    years = [town.founded for town in towns]
    values = {f"town{number}": town.name for number, town in enumerate(towns, 1)}
    names = ", ".join(f"{{{{{key}}}}}" for key in values)
    return Draft(
        wordings=(
            f"Look up in the wiki in which years these towns were founded: {names}. Answer with "
            "the eight years in this order, joined by commas.",
            f"Read the row Founded of each of these towns in the wiki: {names}. Answer with the "
            "eight years in this order, joined by commas.",
            "I need eight years, joined by commas. They say when each of these towns was founded, "
            f"according to the wiki, and stand in the same order: {names}.",
        ),
        unseen_wording=(
            "I am making a quiz about old towns. Could you look up in the wiki when each of these "
            f"was founded: {names}? I need the eight years in this order, joined by commas."
        ),
        values=values,
        start="__WIKIPEDIA__",
        check=says_all(*years),
        solution=[*(find_article(town.name) for town in towns), done(join_facts(*years))],
        needs=[str(year) for year in years],
        difficulty="hard",
        memory_distance_pages=7,
    )


def three_pictures(draw: Draw) -> Draft:
    """Answer with the text of a poster, a photo and a label on three different sites."""
    ((thread, poster),) = draw_posters(draw, 1)
    (listing,) = draw_listings(draw, "serial", 1)
    product = draw.rng.choice(draw.world.shop.products)
    facts = (poster.code, listing.photo.fact, product.model)
    return Draft(
        wordings=(
            "Read three pictures: the code on the poster in the forum thread {{thread}}, the "
            "serial number in the photo of the {{listing}} on the classifieds in the second tab, "
            "and the model number on the label of the {{product}} in the shop in the third tab. "
            "Answer with all three in this order, joined by commas.",
            "Which code is on the poster in the forum thread {{thread}}? Which serial number is "
            "in the photo of the {{listing}} on the classifieds in the second tab? Which model "
            "number is on the label of the {{product}} in the shop in the third tab? Answer with "
            "all three in this order, joined by commas.",
            "I need three texts that only pictures show, joined by commas. First, from the forum "
            "thread {{thread}}, the code on the poster. Second, from the {{listing}} on the "
            "classifieds (second tab), the serial number in the photo. Third, from the "
            "{{product}} in the shop (third tab), the model number on the label.",
        ),
        unseen_wording=(
            "Pictures are hard to read on my screen. Would you tell me the code on the poster in "
            "the forum thread {{thread}}, the serial number in the photo of the {{listing}} on "
            "the classifieds in the second tab, and the model number on the label of the "
            "{{product}} in the shop in the third tab? I need all three in this order, joined by "
            "commas."
        ),
        values={"thread": thread.title, "listing": listing.title, "product": product.name},
        start="__REDDIT__ |AND| __CLASSIFIEDS__ |AND| __SHOPPING__",
        check=says_all(*facts),
        solution=[
            *find_thread(thread.title),
            "tab_focus [1]",
            *find_listing(listing.title),
            "tab_focus [2]",
            *find_product(product.name),
            done(join_facts(*facts)),
        ],
        needs=facts,
        difficulty="hard",
        reads_image=True,
        turns_on=f"CODE {poster.code}",
        memory_distance_pages=6,
    )


def serial_then_mayor_then_author(draw: Draw) -> Draft:
    """Combine facts from a classifieds photo, two wiki articles and a forum user page."""
    (listing,) = draw_listings(draw, "serial", 1)
    ((thread, since),) = draw_authors(draw, 1)
    town = next(one for one in draw.world.wiki.towns if one.name == listing.town)
    facts = (listing.photo.fact, mayor_birth_year(draw, town), since)
    return Draft(
        wordings=(
            "Find the {{listing}} on the classifieds and read the serial number in its photo and "
            "its town. Then look in the wiki, in the second tab, when the mayor of that town was "
            "born. Then look in the forum, in the third tab, in which year the author of the "
            "thread {{thread}} joined. Answer with the serial number and the two years, joined by "
            "commas.",
            "Which serial number is in the photo of the {{listing}} on the classifieds? When was "
            "the mayor of the town of this listing born, says the wiki in the second tab? In "
            "which year did the author of the thread {{thread}} join the forum in the third tab? "
            "Answer with all three in this order, joined by commas.",
            "Three facts are wanted, in this order and joined by commas: the serial number in the "
            "photo of the {{listing}} on the classifieds, the birth year of the mayor of the town "
            "of that listing (wiki, second tab), and the year in which the author of the thread "
            "{{thread}} joined the forum (third tab).",
        ),
        unseen_wording=(
            "I do not trust the {{listing}} on the classifieds. Can you read the serial number in "
            "its photo, and find out in the wiki in the second tab when the mayor of its town was "
            "born? I also need the year in which the author of the thread {{thread}} joined the "
            "forum in the third tab. Please answer with all three in this order, joined by commas."
        ),
        values={"listing": listing.title, "thread": thread.title},
        start="__CLASSIFIEDS__ |AND| __WIKIPEDIA__ |AND| __REDDIT__",
        check=says_all(*facts),
        solution=[
            *find_listing(listing.title),
            "tab_focus [1]",
            find_article(town.name),
            f"click [link: {town.mayor}]",
            "tab_focus [2]",
            *find_author(thread),
            done(join_facts(*facts)),
        ],
        needs=[town.name, town.mayor, thread.author, *map(str, facts)],
        difficulty="hard",
        reads_image=True,
        turns_on=listing.photo.fact,
        memory_distance_pages=7,
    )


def author_then_product_then_mayor(draw: Draw) -> Draft:
    """Combine facts from a forum user page, a product label and a mayor's wiki article."""
    ((thread, since),) = draw_authors(draw, 1)
    product = draw.rng.choice(draw.world.shop.products)
    town = draw.world.wiki.town(dict(product.facts)["Made in"])
    facts = (since, product.model, mayor_birth_year(draw, town))
    return Draft(
        wordings=(
            "Look in the forum in which year the author of the thread {{thread}} joined. Then "
            "find the {{product}} in the shop, in the second tab: read its model number on the "
            "label and the town in which it is made. Then look in the wiki, in the third tab, "
            "when the mayor of that town was born. Answer with the first year, the model number "
            "and the second year, joined by commas.",
            "In which year did the author of the thread {{thread}} join the forum? Which model "
            "number is on the label of the {{product}} in the shop in the second tab? When was "
            "the mayor of the town in which it is made born, says the wiki in the third tab? "
            "Answer with all three in this order, joined by commas.",
            "I want three facts, in this order and joined by commas: the year in which the author "
            "of the forum thread {{thread}} joined, the model number on the label of the "
            "{{product}} (shop, second tab), and the birth year of the mayor of the town in which "
            "that product is made (wiki, third tab).",
        ),
        unseen_wording=(
            "Could you collect three facts for me? One is the year in which the author of the "
            "forum thread {{thread}} joined. Another is the model number on the label of the "
            "{{product}} in the shop in the second tab. The last is the year in which the mayor "
            "of the town where this product is made was born, from the wiki in the third tab. I "
            "need them in this order, joined by commas."
        ),
        values={"thread": thread.title, "product": product.name},
        start="__REDDIT__ |AND| __SHOPPING__ |AND| __WIKIPEDIA__",
        check=says_all(*facts),
        solution=[
            *find_author(thread),
            "tab_focus [1]",
            *find_product(product.name),
            "tab_focus [2]",
            find_article(town.name),
            f"click [link: {town.mayor}]",
            done(join_facts(*facts)),
        ],
        needs=[thread.author, town.name, town.mayor, *map(str, facts)],
        difficulty="hard",
        reads_image=True,
        turns_on=product.model,
        memory_distance_pages=6,
    )


def cook_of_a_dish_and_far_away(draw: Draw) -> Draft:
    """Answer with two facts from a chain of wiki articles, each linked from the previous one."""
    wiki = draw.world.wiki
    dish = draw.rng.choice(wiki.dishes)
    town = wiki.town(dish.town)
    river = next(one for one in wiki.rivers if one.name == town.river)
    mouth = wiki.town(river.mouth)
    mayor = wiki.figure(mouth.mayor)
    birthplace = wiki.town(mayor.birthplace)
    twin = wiki.town(birthplace.twin)
    last = wiki.figure(twin.mayor)
    path = (town, river, mouth, mayor, birthplace, twin, last)
    facts = (dish.cook, last.born)
    unsaid = [one.name for one in path if one.name not in dish.name]
    return Draft(
        wordings=(
            "Open the wiki article about {{dish}} and remember who created it. Then open its "
            "place of origin, the river of that town, the mouth of the river, the mayor of that "
            "town, the birthplace of the mayor, the twin town of the birthplace and the mayor of "
            "the twin town. Answer with the name from the beginning and the year in which the "
            "last mayor was born, joined by a comma.",
            "Who created {{dish}}, and when was the mayor at the end of this path through the "
            "wiki born? The path: {{dish}}, its place of origin, the river of that town, the "
            "mouth of the river, the mayor of that town, the birthplace of the mayor, the twin "
            "town of the birthplace, the mayor of the twin town. Answer with the name and the "
            "year, joined by a comma.",
            "I want a name and a year, joined by a comma. The name is in the wiki article about "
            "{{dish}}: who created it? The year is some links away. Follow the place of origin, "
            "the river of that town, the mouth of the river, the mayor of that town, the "
            "birthplace of the mayor and the twin town of the birthplace. When was the mayor of "
            "this twin town born?",
        ),
        unseen_wording=(
            "I lost my way in the wiki. Could you start at {{dish}}, remember who created it, and "
            "open the place of origin, the river of that town, the mouth of the river, the mayor "
            "of that town, the birthplace of the mayor, the twin town of the birthplace and the "
            "mayor of the twin town? I would like the name from the beginning and the year in "
            "which this last mayor was born, joined by a comma."
        ),
        values={"dish": dish.name},
        start="__WIKIPEDIA__",
        check=says_all(*facts),
        solution=[
            find_article(dish.name),
            *(f"click [link: {one.name}]" for one in path),
            done(join_facts(*facts)),
        ],
        needs=[*unsaid, *map(str, facts)],
        difficulty="hard",
        memory_distance_pages=7,
    )


def parcel_and_five_towns(draw: Draw) -> Draft:
    """Answer with a code from a parcel label and facts from five articles read after it."""
    order = draw.rng.choice(draw.world.shop.orders)
    towns = draw_towns(draw, 5)
    years = [town.founded for town in towns]
    values = {f"town{number}": town.name for number, town in enumerate(towns, 1)}
    names = ", ".join(f"{{{{{key}}}}}" for key in values)
    return Draft(
        wordings=(
            "Open my order {{order}} in the shop and read the code on the parcel label. Then "
            f"look up in the wiki in the second tab in which years {names} were founded. Answer "
            "with the code and the five years in this order, joined by commas.",
            "Which code is on the parcel label of my order {{order}} in the shop? In which "
            f"years were {names} founded, according to the wiki in the second tab? Answer with "
            "the code and the five years in this order, joined by commas.",
            "I need six things in one line, joined by commas. The first is the code on the parcel "
            "label of my shop order {{order}}. The others are the row Founded of these towns "
            f"in the wiki in the second tab, in this order: {names}.",
        ),
        unseen_wording=(
            "Could you look at my order {{order}} in the shop and read the code on the "
            f"parcel label? I also need the years in which {names} were founded, from the wiki in "
            "the second tab. Please answer with the code and the five years in this order, joined "
            "by commas."
        ),
        values={"order": order.number, **values},
        start="__SHOPPING__ |AND| __WIKIPEDIA__",
        check=says_all(order.tracking, *years),
        solution=[
            "click [link: Orders]",
            f"click [link: Order {order.number}]",
            "tab_focus [1]",
            *(find_article(town.name) for town in towns),
            done(join_facts(order.tracking, *years)),
        ],
        needs=[order.tracking, *map(str, years)],
        difficulty="hard",
        reads_image=True,
        turns_on=order.tracking,
        memory_distance_pages=6,
    )


def years_of_seven_authors(draw: Draw) -> Draft:
    """Answer with one number from each of seven user pages, in more than twenty steps."""
    chosen = draw_authors(draw, 7)
    years = [since for _, since in chosen]
    values = {f"thread{number}": thread.title for number, (thread, _) in enumerate(chosen, 1)}
    titles = "; ".join(f"{{{{{key}}}}}" for key in values)
    return Draft(
        wordings=(
            f"In which years did the authors of these seven threads join the forum: {titles}? "
            "Open the page of each author. Answer with the seven years in this order, joined by "
            "commas.",
            f"Open the page of the author of each of these seven threads: {titles}. Answer with "
            "the years in which they joined the forum, in this order, joined by commas.",
            "I need seven years, joined by commas. Each is the year in which the author of a "
            "thread joined the forum, and the page of the author tells it. These are the threads, "
            f"in the order of the years: {titles}.",
        ),
        unseen_wording=(
            "I wonder who has been on the forum for long. Can you open the page of the author of "
            f"each of these seven threads: {titles}? I need the years in which they joined, in "
            "this order, joined by commas."
        ),
        values=values,
        start="__REDDIT__",
        check=says_all(*years),
        solution=[
            *(step for thread, _ in chosen for step in find_author(thread)),
            done(join_facts(*years)),
        ],
        needs=[*(thread.author for thread, _ in chosen), *dict.fromkeys(map(str, years))],
        difficulty="hard",
        memory_distance_pages=18,
    )


def ticket_organiser_and_seller(draw: Draw) -> Draft:
    """Combine facts from a wiki poster, a forum poster and a seller's page."""
    festival = draw.rng.choice(draw.world.wiki.festivals)
    ((thread, poster),) = draw_posters(draw, 1)
    (listing,) = draw_listings(draw, "phone", 1)
    seller = draw.world.classifieds.seller(listing.seller).name
    facts = (festival.venue, poster.code, seller)
    return Draft(
        wordings=(
            "Read in the wiki on the poster of the {{festival}} where it opens. Then read in the "
            "forum, in the second tab, the code on the poster in the thread {{thread}}. Then look "
            "on the classifieds, in the third tab, for the name of the seller of the {{listing}}. "
            "Answer with all three in this order, joined by commas.",
            "Where does the {{festival}} open, according to its poster in the wiki? Which code is "
            "on the poster in the forum thread {{thread}} in the second tab? What is the name of "
            "the seller of the {{listing}} on the classifieds in the third tab? Answer with all "
            "three in this order, joined by commas.",
            "Three facts are wanted, in this order and joined by commas: the place on the poster "
            "of the {{festival}} in the wiki where it opens, the code on the poster in the forum "
            "thread {{thread}} (second tab), and the name of the seller of the {{listing}} "
            "(classifieds, third tab).",
        ),
        unseen_wording=(
            "We are planning a trip. Would you look on the poster of the {{festival}} in the wiki "
            "where it opens, read the code on the poster in the forum thread {{thread}} in the "
            "second tab, and find the name of the seller of the {{listing}} on the classifieds in "
            "the third tab? I need all three in this order, joined by commas."
        ),
        values={"festival": festival.name, "thread": thread.title, "listing": listing.title},
        start="__WIKIPEDIA__ |AND| __REDDIT__ |AND| __CLASSIFIEDS__",
        check=says_all(*facts),
        solution=[
            find_article(festival.name),
            "tab_focus [1]",
            *find_thread(thread.title),
            "tab_focus [2]",
            *find_seller(listing),
            done(join_facts(*facts)),
        ],
        needs=[listing.seller, *facts],
        difficulty="hard",
        reads_image=True,
        turns_on=f"OPENS AT {festival.venue}",
        memory_distance_pages=7,
    )
