"""Details on the further pages of a product: stock, specifications, questions, reviews."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region
from agentkv_env.sites.shop.goods import Product
from agentkv_env.sites.shop.questions import ANY_PRODUCT, OF_CATEGORY, REVIEWS
from agentkv_env.sites.shop.services import NUM_STORES

CARE = ("wipe with a dry cloth", "wash by hand", "keep out of the sun", "oil once a year")
PACKING = ("paper", "cardboard", "a cotton bag", "a wooden box", "nothing")
NUM_ALSO_BOUGHT = 2
SHARE_OFTEN_REVIEWED = 8
"""One product out of this many has many reviews."""


@dataclass(frozen=True, slots=True)
class ProductAnswer:
    """A question with its answer, in the form `key: value`."""

    question: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Detail:
    """The details of one product."""

    stock: int
    """Units in stock; 0 if sold out."""
    arrived_days_ago: int
    """Unique among the products."""
    specifications: tuple[tuple[str, str], ...]
    """Only on the specifications page."""
    answers: tuple[ProductAnswer, ...]
    """Only on the questions page."""
    also_bought: tuple[int, ...]
    """Numbers of other products."""
    sizes_cm: tuple[tuple[str, int], ...]
    """Length of each size, only in the size guide; empty if there is only one size."""
    in_stores: tuple[int, ...]
    """Units in each store; only on a page of its own."""


def generate_details(
    names: Names, region: Region, products: Sequence[Product], sold_out: Collection[Product]
) -> tuple[Detail, ...]:
    """Generate details for each of `products`, which include the `sold_out` ones."""
    rng = names.rng
    arrived = rng.sample(range(2, 900), len(products))
    return tuple(
        Detail(
            stock=0 if product in sold_out else rng.randint(2, 60),
            arrived_days_ago=days_ago,
            specifications=_specifications(names, region, product),
            answers=_answers(names, product),
            also_bought=_also_bought(names, product, products),
            sizes_cm=_sizes_cm(names, product),
            in_stores=tuple(rng.choice((0, rng.randint(1, 9))) for _ in range(NUM_STORES)),
        )
        for product, days_ago in zip(products, arrived, strict=True)
    )


def _specifications(names: Names, region: Region, product: Product) -> tuple[tuple[str, str], ...]:
    rng = names.rng
    edge = (8 * product.grams) ** (1 / 3)  # edge of a cube of this weight, in cm
    width, height, depth = (round(edge * rng.uniform(0.6, 1.7)) for _ in range(3))
    return (
        ("Item code", names.code(3, 3)),
        ("Width", f"{width} cm"),
        ("Height", f"{height} cm"),
        ("Depth", f"{depth} cm"),
        ("Parts", str(rng.randint(1, 24))),
        ("Care", rng.choice(CARE)),
        ("Packed in", rng.choice(PACKING)),
        ("Designed by", rng.choice(region.people[1:]).name),
        ("Repairs in", rng.choice(region.places)),
        ("Sold since", str(rng.randint(1998, 2024))),
    )


def _answers(names: Names, product: Product) -> tuple[ProductAnswer, ...]:
    asked = [*OF_CATEGORY[product.category], *names.sample(ANY_PRODUCT, 2)]
    return tuple(
        ProductAnswer(each.text, each.key, each.value.format(names.pick(each.numbers)))
        for each in names.sample(asked, names.pick((3, 4)))
    )


def _also_bought(names: Names, product: Product, products: Sequence[Product]) -> tuple[int, ...]:
    others = [each.number for each in products
              if each.category == product.category and each.kind != product.kind]  # fmt: skip
    return tuple(names.sample(others, NUM_ALSO_BOUGHT))


def _sizes_cm(names: Names, product: Product) -> tuple[tuple[str, int], ...]:
    lengths = sorted(names.sample(range(20, 99), len(product.sizes)))
    return tuple(zip(product.sizes, lengths, strict=True))


def often_reviewed(
    names: Names, region: Region, products: Sequence[Product], reviewed: Collection[tuple[int, str]]
) -> list[tuple[int, str, int, str, str, int]]:
    """Yield product, author, stars, title, text and age in days of many reviews of a few products.

    `reviewed` are the products and authors that go together already: nobody reviews twice.
    """
    rng = names.rng
    rows: list[tuple[int, str, int, str, str, int]] = []
    for product in names.sample(products, len(products) // SHARE_OFTEN_REVIEWED):
        for author in rng.sample(region.people[1:], rng.randint(6, 11)):
            if (product.number, author.name) in reviewed:
                continue
            stars, title, text = rng.choice(REVIEWS)
            text = text.format(place=author.place, count=rng.randint(2, 29))
            rows.append((product.number, author.name, stars, title, text, rng.randint(30, 700)))
    return rows
