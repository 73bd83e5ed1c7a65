"""What the shop sells and what has happened in it so far, generated from a world seed."""

from dataclasses import dataclass, replace

from agentkv_env.sites.names import Names, Person
from agentkv_env.sites.shop.stock import BLURBS, CATEGORIES, COLOURS, LINES, REVIEWS, SIZES, Kind
from agentkv_env.sites.town import Town

NUM_CATEGORIES = 8
PRODUCTS_PER_KIND = 3


@dataclass(frozen=True, slots=True)
class Product:
    """One thing on sale. `number` is in its address: /product/12."""

    number: int
    name: str
    brand: str
    category: str
    kind: str
    cents: int
    """No two products of a category cost the same."""
    colours: tuple[str, ...]
    sizes: tuple[str, ...]
    """Empty where there is only one size."""
    facts: tuple[tuple[str, str], ...]
    """The specification table."""
    blurb: str
    model: str
    """Only in the picture: the model number, on the label."""
    grams: int
    """Only in the picture: the weight, on the label."""
    club_cents: int | None
    """Only in the picture: a lower price on a tag over the photo; none for most products."""

    @property
    def picture(self) -> str:
        """Key of the photo. Products of a kind share a few photos; a price tag makes it its own."""
        if self.club_cents is not None:
            return f"tag-{self.number}"
        return f"photo-{slug(self.kind)}-{self.number % 2}"


@dataclass(frozen=True, slots=True)
class Review:
    """`stars` from 1 to 5."""

    product: int
    author: str
    stars: int
    title: str
    text: str
    days_ago: int


@dataclass(frozen=True, slots=True)
class Coupon:
    """A reduction of everything in one category."""

    code: str
    """Only in the picture: on the poster."""
    percent: int
    category: str
    days_left: int
    """Only in the picture."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to send things; `label` is "Home" or "Work"."""

    label: str
    person: str
    street: str
    place: str
    postcode: str


@dataclass(frozen=True, slots=True)
class PastOrder:
    """An order from before; `lines` are product numbers and quantities."""

    number: int
    days_ago: int
    status: str
    lines: tuple[tuple[int, int], ...]
    tracking: str
    """Only in the picture: on the parcel's label."""


@dataclass(frozen=True, slots=True)
class Content:
    """Everything the shop starts with."""

    name: str
    categories: tuple[str, ...]
    brands: tuple[str, ...]
    products: tuple[Product, ...]
    """In order of their numbers, from 1."""
    reviews: tuple[Review, ...]
    coupons: tuple[Coupon, ...]
    """One for each of the first few categories."""
    addresses: tuple[Address, ...]
    orders: tuple[PastOrder, ...]
    """Oldest first."""
    free_shipping_dollars: int
    """Only in the picture: from which total on standard shipping is free."""

    def product(self, number: int) -> Product | None:
        """The product with `number`, or None."""
        return self.products[number - 1] if 1 <= number <= len(self.products) else None

    def in_category(self, category: str) -> tuple[Product, ...]:
        return tuple(product for product in self.products if product.category == category)


def slug(name: str) -> str:
    """`name` as part of an address: lower case, dashes for spaces."""
    return name.lower().replace(" ", "-")


def generate(names: Names, town: Town) -> Content:
    """Draw the shop of a world; `town.people[0]` is the customer."""
    categories = tuple(sorted(names.sample(sorted(CATEGORIES), NUM_CATEGORIES)))
    products = _products(names, town, categories)
    me = town.people[0]
    return Content(
        name=names.brand(),
        categories=categories,
        brands=town.brands,
        products=products,
        reviews=_reviews(names, town, products),
        coupons=_coupons(names, categories),
        addresses=(_address(names, "Home", me, me.place),
                   _address(names, "Work", me, names.pick(town.places))),
        orders=_orders(names, products),
        free_shipping_dollars=names.pick((60, 70, 80, 90, 120)),
    )  # fmt: skip


def _products(names: Names, town: Town, categories: tuple[str, ...]) -> tuple[Product, ...]:
    products: list[Product] = []
    for category in categories:
        prices: set[int] = set()
        drawn: list[Product] = []
        for kind in CATEGORIES[category]:
            for brand in names.sample(town.brands, PRODUCTS_PER_KIND):
                product = _product(names, town, brand=brand, category=category, kind=kind)
                while product.cents in prices:
                    product = replace(product, cents=product.cents + 100)
                prices.add(product.cents)
                drawn.append(product)
        names.rng.shuffle(drawn)
        with_tag = set(names.sample(range(len(drawn)), 3))
        for index, product in enumerate(drawn):
            club = product.cents * names.pick((70, 75, 80)) // 10000 * 100 + 50
            tagged = club if index in with_tag else None
            products.append(replace(product, number=len(products) + 1, club_cents=tagged))
    return tuple(products)


def _product(names: Names, town: Town, *, brand: str, category: str, kind: Kind) -> Product:
    rng = names.rng
    material, place = rng.choice(kind.materials), rng.choice(town.places)
    least, most = kind.dollars
    blurb = rng.choice(BLURBS).format(
        kind=kind.name.lower(), material=material, Material=material.capitalize(), place=place
    )
    return Product(
        number=0,
        name=names.product(brand, LINES, kind.name),
        brand=brand,
        category=category,
        kind=kind.name,
        cents=rng.randint(least, most) * 100 + rng.choice((0, 50, 90, 95)),
        colours=tuple(sorted(rng.sample(COLOURS, rng.choice((1, 2, 3, 3))))),
        sizes=SIZES if kind.sizes else (),
        facts=(
            ("Material", material),
            ("Made in", place),
            ("Warranty", f"{rng.randint(2, 9)} years"),
            ("Delivery", f"in {rng.randint(2, 9)} days"),
        ),
        blurb=blurb,
        model=names.code(),
        grams=rng.randrange(kind.grams[0], kind.grams[1], 10),
        club_cents=None,
    )


def _reviews(names: Names, town: Town, products: tuple[Product, ...]) -> tuple[Review, ...]:
    rng = names.rng
    reviews: list[Review] = []
    for product in products:
        mood = rng.choice(((5, 5, 4), (5, 4, 3), (4, 3, 2), (3, 2, 1), (5, 4, 1)))
        for author in rng.sample(town.people[1:], rng.choice((0, 1, 2, 2, 3))):
            stars = rng.choice(mood)
            title, text = rng.choice(REVIEWS[stars])
            reviews.append(
                Review(product.number, author.name, stars, title, text, rng.randint(3, 400))
            )
    return tuple(reviews)


def _coupons(names: Names, categories: tuple[str, ...]) -> tuple[Coupon, ...]:
    rng = names.rng
    percents = rng.sample((10, 15, 20, 25, 30, 40), 4)
    return tuple(
        Coupon(
            names.word(("a", "ar", "en", "on")).upper() + str(rng.choice((23, 34, 45, 57, 72))),
            percent,
            category,
            rng.randint(3, 28),
        )
        for percent, category in zip(percents, rng.sample(categories, 4), strict=True)
    )


def _address(names: Names, label: str, me: Person, place: str) -> Address:
    street = f"{names.rng.randint(2, 97)} {names.street()}"
    return Address(label, me.name, street, place, str(names.rng.randint(10000, 99999)))


def _orders(names: Names, products: tuple[Product, ...]) -> tuple[PastOrder, ...]:
    rng = names.rng
    number = rng.randint(3001, 8999)
    bought = rng.sample(products, 7)
    orders: list[PastOrder] = []
    for status, days_ago, count in (
        ("Delivered", rng.randint(160, 200), 2),
        ("Cancelled", rng.randint(80, 120), 1),
        ("Delivered", rng.randint(30, 60), 2),
        ("Being packed", rng.randint(1, 3), 2),
    ):
        lines = tuple((bought.pop().number, rng.choice((1, 1, 2))) for _ in range(count))
        orders.append(PastOrder(number, days_ago, status, lines, names.code(2, 4)))
        number += rng.randint(11, 37)
    return tuple(orders)
