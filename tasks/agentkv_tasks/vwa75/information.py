"""Question tasks, which are scored by the answer and not by the final page."""

from agentkv_tasks.template import Draft, Draw, TaskTemplate, says
from agentkv_tasks.vwa75 import collected, missing, questions
from agentkv_tasks.vwa75.routes import join_facts, says_all, switch_site
from agentkv_tasks.vwa75.steps import done, find_article, find_product


def fact_of_a_town(draw: Draw) -> Draft:
    """Answer with one line of an article's infobox."""
    town = draw.rng.choice(draw.world.wiki.towns)
    fact, answer = draw.rng.choice(
        (
            ("population", f"{town.population:,}"),
            ("year of foundation", str(town.founded)),
        )
    )
    return Draft(
        wordings=(
            "What is the {{fact}} of {{town}}, according to the wiki?",
            "Look up {{town}} in the wiki and answer with its {{fact}}.",
            "I want to know one thing about {{town}}, the {{fact}}. The wiki has an article.",
        ),
        unseen_wording=(
            "I am preparing a talk about {{town}}. Could you look up its {{fact}} in the wiki?"
        ),
        values={"fact": fact, "town": town.name},
        start="__WIKIPEDIA__",
        check=says(must_include=[answer]),
        solution=[find_article(town.name), done(answer)],
        needs=[answer],
    )


def mayor_of_a_twin_town(draw: Draw) -> Draft:
    """Answer with the mayor of a town's twin town."""
    wiki = draw.world.wiki
    town = draw.rng.choice(wiki.towns)
    twin = wiki.town(town.twin)
    hobby = wiki.figure(twin.mayor).hobby
    return Draft(
        wordings=(
            "Who is the mayor of the twin town of {{town}}, and what is the hobby of this mayor? "
            "Answer with the name and the hobby, joined by a comma.",
            "{{town}} has a twin town. Open the article about the mayor of the twin town and "
            "answer with the name and the hobby of the mayor, joined by a comma.",
            "I want to know the name and the hobby of a mayor, joined by a comma: the mayor of "
            "the twin town of {{town}}.",
        ),
        unseen_wording=(
            "I am going to meet the mayor of the twin town of {{town}}. Can you find this mayor's "
            "name and hobby in the wiki, and give me both, joined by a comma?"
        ),
        values={"town": town.name},
        start="__WIKIPEDIA__",
        check=says_all(twin.mayor, hobby),
        solution=[
            find_article(town.name),
            f"click [link: {twin.name}]",
            f"click [link: {twin.mayor}]",
            done(join_facts(twin.mayor, hobby)),
        ],
        needs=[twin.name, twin.mayor, hobby],
        difficulty="medium",
    )


def motto_of_a_town(draw: Draw) -> Draft:
    """Answer with a motto that appears only in the image of a coat of arms."""
    town = draw.rng.choice(draw.world.wiki.towns)
    return Draft(
        wordings=(
            "What is the motto on the coat of arms of {{town}}?",
            "Which words are the motto of {{town}}? Look at its coat of arms.",
            "Find the wiki article about {{town}} and answer with the motto on the coat of arms.",
        ),
        unseen_wording=(
            "The letters on the coat of arms of {{town}} are too small for me. Would you read the "
            "motto and tell me what it is?"
        ),
        values={"town": town.name},
        start="__WIKIPEDIA__",
        check=says(must_include=[town.motto]),
        solution=[find_article(town.name), done(town.motto)],
        needs=[town.motto],
        reads_image=True,
        turns_on=town.motto,
    )


def slogan_of_a_company_by_its_founder(draw: Draw) -> Draft:
    """Answer with a slogan that appears only in an image on the article of a founder's company."""
    maker = draw.rng.choice(draw.world.wiki.makers)
    return Draft(
        wordings=(
            "{{founder}} was the founder of a company. Open its article in the wiki and answer "
            "with the year in which it was founded and the slogan on its old advertisement, "
            "joined by a comma.",
            "When was the company of {{founder}} founded, and which slogan is on its old "
            "advertisement in the wiki? Answer with the year and the slogan, joined by a comma.",
            "I want two facts about the company that {{founder}} founded, joined by a comma: the "
            "year in which it was founded, and the slogan on its old advertisement in the wiki.",
        ),
        unseen_wording=(
            "I collect slogans of old companies. Could you find the company that {{founder}} "
            "founded in the wiki, and tell me the year in which it was founded and the slogan on "
            "its old advertisement, joined by a comma?"
        ),
        values={"founder": maker.founder},
        start="__WIKIPEDIA__",
        check=says_all(maker.founded, maker.slogan),
        solution=[
            find_article(maker.founder),
            f"click [link: {maker.name}]",
            done(join_facts(maker.founded, maker.slogan)),
        ],
        needs=[maker.name, str(maker.founded), maker.slogan],
        difficulty="medium",
        reads_image=True,
        turns_on=maker.slogan,
    )


def mayor_of_where_a_product_is_made(draw: Draw) -> Draft:
    """Read a town's name in the shop and look up its mayor in the wiki."""
    product = draw.rng.choice(draw.world.shop.products)
    town = draw.world.wiki.town(dict(product.facts)["Made in"])
    facts = (town.mayor, draw.world.wiki.figure(town.mayor).born)
    return Draft(
        wordings=(
            "In which town is the {{product}} in the shop made? Look up in the wiki who is the "
            "mayor of this town and when the mayor was born. Answer with the name and the year, "
            "joined by a comma.",
            "Find the {{product}} in the shop and read where it is made. Then go to the wiki: who "
            "is the mayor of that town, and when was the mayor born? Answer with the name and the "
            "year, joined by a comma.",
            "I want the name and the birth year of a mayor, joined by a comma. It is the mayor of "
            "the town in which the {{product}} in the shop is made; the wiki has an article about "
            "the town and one about the mayor.",
        ),
        unseen_wording=(
            "The {{product}} in the shop comes from some town. Could you see which one it is, and "
            "then find out in the wiki who is the mayor there and when this mayor was born? I "
            "need the name and the year, joined by a comma."
        ),
        values={"product": product.name},
        start="__HOMEPAGE__",
        check=says_all(*facts),
        solution=[
            "click [link: Shop]",
            *find_product(product.name),
            *switch_site("Wiki"),
            find_article(town.name),
            f"click [link: {town.mayor}]",
            done(join_facts(*facts)),
        ],
        needs=[town.name, town.mayor, str(facts[1])],
        difficulty="medium",
        memory_distance_pages=2,
    )


TEMPLATES: tuple[TaskTemplate, ...] = (
    TaskTemplate(fact_of_a_town),
    TaskTemplate(mayor_of_a_twin_town),
    TaskTemplate(motto_of_a_town),
    TaskTemplate(slogan_of_a_company_by_its_founder),
    TaskTemplate(mayor_of_where_a_product_is_made),
    TaskTemplate(questions.serial_number_in_a_photo),
    TaskTemplate(questions.cheapest_in_a_category),
    TaskTemplate(questions.twin_of_the_town_of_a_seller),
    TaskTemplate(missing.fact_the_wiki_does_not_have),
    TaskTemplate(missing.fact_the_shop_does_not_have),
    TaskTemplate(missing.fact_an_author_does_not_tell),
    TaskTemplate(collected.founded_of_eight_towns),
    TaskTemplate(collected.three_pictures),
    TaskTemplate(collected.serial_then_mayor_then_author),
    TaskTemplate(collected.author_then_product_then_mayor),
    TaskTemplate(collected.cook_of_a_dish_and_far_away),
    TaskTemplate(collected.parcel_and_five_towns),
    TaskTemplate(collected.years_of_seven_authors),
    TaskTemplate(collected.ticket_organiser_and_seller),
)
