"""Tasks that ask for something: the answer is what counts, not the page the agent ends on."""

from agentkv_tasks.template import Draft, Draw, Template, says
from agentkv_tasks.vwa75 import questions
from agentkv_tasks.vwa75.steps import done, find_article, find_product


def fact_of_a_town(draw: Draw) -> Draft:
    """One article, one line of its infobox."""
    town = draw.rng.choice(draw.world.wiki.towns)
    asked = (
        ("How many people live in {{town}}", f"{town.population:,}"),
        ("In which year was {{town}} founded", str(town.founded)),
        ("On which day is the market in {{town}}", town.market_day),
        ("How many metres above the sea does {{town}} lie", str(town.elevation_m)),
    )
    first = draw.rng.randrange(2) * 2
    question, answer = asked[first + draw.instance % 2]
    return Draft(
        intent=f"{question}, according to the wiki?",
        values={"town": town.name},
        start="__WIKIPEDIA__",
        check=says(must_include=[answer]),
        solution=[find_article(town.name), done(answer)],
    )


def birth_year_of_a_mayor(draw: Draw) -> Draft:
    """From the town to its mayor."""
    town = draw.rng.choice(draw.world.wiki.towns)
    born = draw.world.wiki.figure(town.mayor).born
    return Draft(
        intent=draw.rng.choice(
            (
                "In which year was the mayor of {{town}} born? Look it up in the wiki.",
                "Find the birth year of the mayor of {{town}} in the wiki.",
            )
        ),
        values={"town": town.name},
        start="__WIKIPEDIA__",
        check=says(must_include=[str(born)]),
        solution=[find_article(town.name), f"click [link: {town.mayor}]", done(born)],
    )


def hobby_of_the_mayor_of_a_twin_town(draw: Draw) -> Draft:
    """From the town to its twin to the twin's mayor."""
    wiki = draw.world.wiki
    town = draw.rng.choice(wiki.towns)
    twin = wiki.town(town.twin)
    hobby = wiki.figure(twin.mayor).hobby
    return Draft(
        intent=draw.rng.choice(
            (
                "What is the hobby of the mayor of the twin town of {{town}}?",
                "{{town}} has a twin town. Which hobby does the mayor of the twin town have?",
            )
        ),
        values={"town": town.name},
        start="__WIKIPEDIA__",
        check=says(must_include=[hobby]),
        solution=[
            find_article(town.name),
            f"click [link: {twin.name}]",
            f"click [link: {twin.mayor}]",
            done(hobby),
        ],
        difficulty="medium",
    )


def motto_of_a_town(draw: Draw) -> Draft:
    """Only in the picture: the coat of arms."""
    town = draw.rng.choice(draw.world.wiki.towns)
    return Draft(
        intent=draw.rng.choice(
            (
                "What is the motto on the coat of arms of {{town}}?",
                "Which words are the motto of {{town}}? Look at its coat of arms.",
            )
        ),
        values={"town": town.name},
        start="__WIKIPEDIA__",
        check=says(must_include=[town.motto]),
        solution=[find_article(town.name), done(town.motto)],
        reads_image=True,
        turns_on=town.motto,
    )


def ticket_of_a_festival(draw: Draw) -> Draft:
    """Only in the picture: the poster."""
    festival = draw.rng.choice(draw.world.wiki.festivals)
    return Draft(
        intent="How many dollars is a ticket for the {{festival}}? Its poster in the wiki says so.",
        values={"festival": festival.name},
        start="__WIKIPEDIA__",
        check=says(must_include=[str(festival.ticket)]),
        solution=[find_article(festival.name), done(festival.ticket)],
        reads_image=True,
        turns_on=f"TICKETS {festival.ticket} DOLLARS",
    )


def steps_of_a_landmark_by_its_architect(draw: Draw) -> Draft:
    """From the architect to the building, then only in the picture: the plaque."""
    landmark = draw.rng.choice(draw.world.wiki.landmarks)
    return Draft(
        intent=draw.rng.choice(
            (
                "How many steps has the landmark that {{architect}} built? Read its plaque.",
                "{{architect}} built a landmark. How many steps does its plaque mention?",
            )
        ),
        values={"architect": landmark.architect},
        start="__WIKIPEDIA__",
        check=says(must_include=[str(landmark.steps)]),
        solution=[
            find_article(landmark.architect),
            f"click [link: {landmark.name}]",
            done(landmark.steps),
        ],
        difficulty="medium",
        reads_image=True,
        turns_on=f"{landmark.steps} STEPS",
    )


def most_visited_festival(draw: Draw) -> Draft:
    """Six articles read one after the other; the answer needs all of them."""
    festivals = sorted(draw.world.wiki.festivals, key=lambda festival: festival.name)
    best = max(festivals, key=lambda festival: festival.visitors)
    rounds: list[str] = []
    for festival in festivals:
        rounds += [f"click [link: {festival.name}]", "go_back"]
    return Draft(
        intent="Which festival in the wiki has the most visitors, and how many? "
        "Look at all articles in the category Festivals.",
        start="__WIKIPEDIA__",
        check=says(must_include=[best.name, f"{best.visitors:,}"]),
        solution=[
            "click [link: Festivals]",
            *rounds[:-1],
            done(f"{best.name}, {best.visitors:,}"),
        ],
        difficulty="hard",
        memory_distance_pages=2 * (len(festivals) - 1),
    )


def larger_of_two_towns(draw: Draw) -> Draft:
    """Two articles compared."""
    one, other = draw.rng.sample(draw.world.wiki.towns, 2)
    larger = max(one, other, key=lambda town: town.population)
    smaller = other if larger is one else one
    return Draft(
        intent="Which town has more inhabitants, {{one}} or {{other}}? Answer with its name.",
        values={"one": one.name, "other": other.name},
        start="__WIKIPEDIA__",
        check=says(must_include=[larger.name], must_exclude=[smaller.name]),
        solution=[find_article(one.name), find_article(other.name), done(larger.name)],
        difficulty="medium",
        memory_distance_pages=1,
    )


def elevation_of_where_a_product_is_made(draw: Draw) -> Draft:
    """A town's name read in the shop, looked up in the wiki in the other tab."""
    product = draw.rng.choice(draw.world.shop.products)
    town = draw.world.wiki.town(dict(product.facts)["Made in"])
    return Draft(
        intent="How high in metres does the town lie where the {{product}} is made? "
        "The shop knows the town, the wiki in the other tab its elevation.",
        values={"product": product.name},
        start="__SHOPPING__ |AND| __WIKIPEDIA__",
        check=says(must_include=[str(town.elevation_m)]),
        solution=[
            *find_product(product.name),
            "tab_focus [1]",
            find_article(town.name),
            done(town.elevation_m),
        ],
        difficulty="hard",
        memory_distance_pages=1,
    )


def fact_the_wiki_does_not_have(draw: Draw) -> Draft:
    """The article is there, the fact is not: the answer is N/A."""
    figure = draw.rng.choice(draw.world.wiki.figures)
    return Draft(
        intent=draw.rng.choice(
            (
                "What is the shoe size of {{figure}}? Answer N/A if the wiki does not say.",
                "Look up the phone number of {{figure}} in the wiki. Answer N/A if there is none.",
            )
        ),
        values={"figure": figure.name},
        start="__WIKIPEDIA__",
        check=says(exact_match="N/A"),
        solution=[find_article(figure.name), done("N/A")],
    )


TEMPLATES: tuple[Template, ...] = (
    Template(fact_of_a_town, 2),
    Template(birth_year_of_a_mayor),
    Template(hobby_of_the_mayor_of_a_twin_town),
    Template(motto_of_a_town),
    Template(ticket_of_a_festival),
    Template(steps_of_a_landmark_by_its_architect),
    Template(most_visited_festival),
    Template(larger_of_two_towns),
    Template(questions.fact_in_a_photo, 2),
    Template(questions.cheapest_in_a_category),
    Template(questions.home_town_of_a_seller),
    Template(questions.code_on_a_poster),
    Template(questions.how_long_an_author_is_a_member),
    Template(questions.warranty_of_a_product),
    Template(elevation_of_where_a_product_is_made),
    Template(questions.listing_that_does_not_exist),
    Template(fact_the_wiki_does_not_have),
)
