"""Write the articles from the facts: lead, infobox, sections and a picture."""

from collections.abc import Iterator
from functools import lru_cache

from agentkv_env.sites import images
from agentkv_env.sites.wiki.article import Article, Picture, Reference, listing
from agentkv_env.sites.wiki.content import (
    ArticleFigure,
    Dish,
    Festival,
    Landmark,
    Maker,
    River,
    Town,
    WikiContent,
)
from agentkv_env.sites.wiki.public_articles import CATEGORIES as PUBLIC_CATEGORIES
from agentkv_env.sites.wiki.public_articles import deeds_of, found_in, public_articles

CATEGORIES = (
    "Towns", "People", "Rivers", "Companies", "Festivals", "Dishes", "Landmarks",
    *PUBLIC_CATEGORIES,
)  # fmt: skip


@lru_cache(maxsize=16)
def articles(content: WikiContent) -> dict[str, Article]:
    """Return all articles by title, in alphabetical order."""
    return {article.title: article for article in sorted(_all(content), key=lambda a: a.title)}


def draw(article: Article) -> bytes:
    """Draw the picture of an article as a PNG."""
    picture = article.picture
    if picture.style == "scene":
        tag = picture.lines[0]
        return images.scene(article.category, key=article.title, width=340, height=200, tag=tag)
    if picture.style == "label":
        return images.label(picture.lines, key=article.title, width=330)
    return images.poster(picture.lines, key=article.title, width=350, height=210)


def _all(content: WikiContent) -> Iterator[Article]:
    for town in content.towns:
        yield _town(town, content)
    for figure in content.figures:
        yield _figure(figure, content)
    yield from map(_river, content.rivers)
    yield from map(_maker, content.makers)
    yield from map(_festival, content.festivals)
    yield from map(_dish, content.dishes)
    yield from map(_landmark, content.landmarks)
    yield from public_articles(content.public)


def _town(town: Town, content: WikiContent) -> Article:
    here: list[str] = [thing.name for thing in content.landmarks if thing.town == town.name]
    here += [thing.name for thing in content.festivals if thing.town == town.name]
    here += [thing.name for thing in content.dishes if thing.town == town.name]
    public = found_in(town.name, content.public)
    seen = (("See also", listing(public) + "."),) if public else ()
    known = f" It is known for the {listing(here)}." if here else ""
    return Article(
        town.name,
        "Towns",
        f"{town.name} is a town on the [[{town.river}]].{known}",
        (
            ("Population", f"{town.population:,}"),
            ("Founded", str(town.founded)),
            ("Elevation", f"{town.elevation_m} m"),
            ("Mayor", f"[[{town.mayor}]]"),
            ("Market day", town.market_day),
            ("Twin town", f"[[{town.twin}]]"),
            ("Former name", town.former),
        ),
        (
            ("History", f"{town.name} was founded in {town.founded} beside a ford."),
            ("Government", f"The mayor of {town.name} is [[{town.mayor}]]."),
            *seen,
        ),
        Picture("poster", (town.name.upper(), town.motto), "Coat of arms with the town's motto"),
        references=(
            Reference(f"Threads about {town.name}", "forum", f"/search?q={town.name}"),
            Reference(f"Weather in {town.name}", "home", f"/weather/{town.name}"),
        ),
    )


def _figure(figure: ArticleFigure, content: WikiContent) -> Article:
    deeds = [f"the mayor of [[{t.name}]]" for t in content.towns if t.mayor == figure.name]
    deeds += [f"the founder of [[{m.name}]]" for m in content.makers if m.founder == figure.name]
    deeds += [f"organiser of the [[{f.name}]]" for f in content.festivals
              if f.organiser == figure.name]  # fmt: skip
    deeds += [f"the first cook of [[{d.name}]]" for d in content.dishes if d.cook == figure.name]
    deeds += [f"architect of the [[{x.name}]]" for x in content.landmarks
              if x.architect == figure.name]  # fmt: skip
    deeds += deeds_of(figure.name, content.public)
    article = "an" if figure.occupation[0] in "aeiou" else "a"
    return Article(
        figure.name,
        "People",
        f"{figure.name} is {article} {figure.occupation} and {listing(deeds, linked=True)}."
        if figure.born > 1900
        else f"{figure.name} was {article} {figure.occupation} and {listing(deeds, linked=True)}.",
        (
            ("Born", str(figure.born)),
            ("Birthplace", f"[[{figure.birthplace}]]"),
            ("Occupation", figure.occupation),
            ("Hobby", figure.hobby),
        ),
        (("Early life", f"Born in [[{figure.birthplace}]], schooled in [[{figure.school}]]."),),
        Picture("scene", (f"PORTRAIT OF {figure.portrait}",), "A portrait and its year"),
    )


def _river(river: River) -> Article:
    return Article(
        river.name,
        "Rivers",
        f"The {river.name} is a river that rises near [[{river.source}]].",
        (
            ("Length", f"{river.length_km} km"),
            ("Source", f"[[{river.source}]]"),
            ("Mouth", f"[[{river.mouth}]]"),
            ("Common fish", river.fish),
        ),
        (("Course", f"From [[{river.source}]] it flows for {river.length_km} km to "
                    f"[[{river.mouth}]]."),),
        Picture(
            "label", ("RIVER MAP", f"DEPTH {river.depth_m} METRES"),
            "Map with the greatest depth",
        ),
    )  # fmt: skip


def _maker(maker: Maker) -> Article:
    return Article(
        maker.name,
        "Companies",
        f"{maker.name} is a company based in [[{maker.seat}]].",
        (
            ("Founded", str(maker.founded)),
            ("Founder", f"[[{maker.founder}]]"),
            ("Seat", f"[[{maker.seat}]]"),
            ("Employees", str(maker.employees)),
        ),
        (("History", f"[[{maker.founder}]] started {maker.name} in {maker.founded} to make "
                     f"{maker.first}."),),
        Picture("poster", (maker.name.upper(), maker.slogan), "Old advertisement with the slogan"),
        references=(
            Reference(f"{maker.name} in the shop", "shop", f"/brand/{maker.name.lower()}"),
        ),
    )  # fmt: skip


def _festival(festival: Festival) -> Article:
    return Article(
        festival.name,
        "Festivals",
        f"The {festival.name} takes place in [[{festival.town}]] every {festival.month}.",
        (
            ("Town", f"[[{festival.town}]]"),
            ("Month", festival.month),
            ("First held", str(festival.since)),
            ("Organiser", f"[[{festival.organiser}]]"),
            ("Visitors", f"{festival.visitors:,}"),
        ),
        (("Programme", f"[[{festival.organiser}]] opens the week with a concert."),),
        Picture(
            "poster",
            (
                "COME AND SEE",
                f"OPENS AT {festival.venue}",
                f"TICKETS {festival.ticket} DOLLARS",
            ),
            "Poster of this year",
        ),
        references=(Reference("Events calendar", "home", "/events"),),
    )  # fmt: skip


def _dish(dish: Dish) -> Article:
    return Article(
        dish.name,
        "Dishes",
        f"{dish.name} is a dish from [[{dish.town}]] made with {dish.ingredient}.",
        (
            ("Place of origin", f"[[{dish.town}]]"),
            ("Main ingredient", dish.ingredient),
            ("Created by", f"[[{dish.cook}]]"),
            ("Served with", dish.served),
        ),
        (("History", f"[[{dish.cook}]] first served it in {dish.year}."),),
        Picture(
            "label", ("RECIPE", f"COOK {dish.minutes} MINUTES", "STIR TWICE"),
            "Recipe card with the cooking time",
        ),
        references=(Reference("The cooking board", "forum", "/board/cooking"),),
    )  # fmt: skip


def _landmark(landmark: Landmark) -> Article:
    return Article(
        landmark.name,
        "Landmarks",
        f"The {landmark.name} is a landmark of [[{landmark.town}]], {landmark.height_m} m high.",
        (
            ("Town", f"[[{landmark.town}]]"),
            ("Built", str(landmark.built)),
            ("Architect", f"[[{landmark.architect}]]"),
            ("Height", f"{landmark.height_m} m"),
        ),
        (("History", f"It was built in {landmark.built} by [[{landmark.architect}]]."),),
        Picture(
            "label", ("WELCOME", f"{landmark.steps} STEPS", "MIND YOUR HEAD"),
            "Plaque at the entrance with the number of steps",
        ),
    )  # fmt: skip
