"""The initial content of the shop, generated from the world's seed."""

from dataclasses import dataclass

from agentkv_env.sites.names import Names, Person
from agentkv_env.sites.region import Region
from agentkv_env.sites.shop.details import Detail, generate_details, often_reviewed
from agentkv_env.sites.shop.goods import Product, generate_products, generate_sold_out, slug
from agentkv_env.sites.shop.services import (
    GiftCard,
    ShopClub,
    Store,
    generate_club,
    generate_gift_cards,
    generate_stores,
)
from agentkv_env.sites.shop.stock import CATEGORIES, REVIEWS

__all__ = ["Address", "ShopContent", "Coupon", "PastOrder", "Product", "Review", "generate", "slug"]

NUM_CATEGORIES = 8


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
    """A coupon for all products of one category."""

    code: str
    """Only in the picture, on the poster."""
    percent: int
    category: str
    days_left: int
    """Only in the picture."""


@dataclass(frozen=True, slots=True)
class Address:
    """A delivery address; `label` is "Home" or "Work"."""

    label: str
    person: str
    street: str
    place: str
    postcode: str


@dataclass(frozen=True, slots=True)
class PastOrder:
    """A past order; `lines` are product numbers and quantities."""

    number: int
    days_ago: int
    status: str
    lines: tuple[tuple[int, int], ...]
    tracking: str
    """Only in the picture, on the parcel's label."""
    invoice: str
    """Invoice number; only in the picture."""
    courier: str
    """Courier; only in the status history."""
    step_days: tuple[int, ...]
    """Days from the order to each later step."""


@dataclass(frozen=True, slots=True)
class ShopContent:
    """The initial content of the shop."""

    name: str
    categories: tuple[str, ...]
    brands: tuple[str, ...]
    products: tuple[Product, ...]
    """Products on sale, in the order of their numbers, from 1."""
    sold_out: tuple[Product, ...]
    """Sold-out products, numbered after the others; never the cheapest or dearest of a kind."""
    details: tuple[Detail, ...]
    """Details of all products, including sold-out ones, in the order of their numbers."""
    reviews: tuple[Review, ...]
    coupons: tuple[Coupon, ...]
    """One coupon for each of the first categories."""
    addresses: tuple[Address, ...]
    orders: tuple[PastOrder, ...]
    """Oldest first."""
    free_shipping_dollars: int
    """Minimum total for free standard shipping; only in the picture."""
    delivery_days: tuple[tuple[str, int], ...]
    """Delivery time to each town, in days."""
    stores: tuple[Store, ...]
    gift_cards: tuple[GiftCard, ...]
    club: ShopClub

    @property
    def catalogue(self) -> tuple[Product, ...]:
        """All products, including sold-out ones."""
        return (*self.products, *self.sold_out)

    def product(self, number: int) -> Product | None:
        """Return the product with this number, or None."""
        shown = self.catalogue
        return shown[number - 1] if 1 <= number <= len(shown) else None

    def detail(self, product: Product) -> Detail:
        """Return the details of `product`."""
        return self.details[product.number - 1]

    def in_category(self, category: str) -> tuple[Product, ...]:
        """Return the products on sale of a category."""
        return tuple(product for product in self.products if product.category == category)


def generate(names: Names, region: Region) -> ShopContent:
    """Generate the shop; `region.me` is the customer."""
    categories = tuple(sorted(names.sample(sorted(CATEGORIES), NUM_CATEGORIES)))
    products = generate_products(names, region, categories)
    more = Names(names.seed, "more of the shop", names.taken)
    sold_out = generate_sold_out(more, region, products)
    shown = (*products, *sold_out)
    reviews = _reviews(names, region, products)
    reviewed = {(review.product, review.author) for review in reviews}
    me = region.people[0]
    return ShopContent(
        name=names.brand(),
        categories=categories,
        brands=region.brands,
        products=products,
        sold_out=sold_out,
        details=generate_details(more, region, shown, sold_out),
        reviews=(*reviews, *(Review(*row) for row in often_reviewed(more, region, products,
                                                                    reviewed))),
        coupons=_coupons(names, categories),
        addresses=(_address(names, "Home", me, me.place),
                   _address(names, "Work", me, names.pick(region.places))),
        orders=_orders(names, more, region, products),
        free_shipping_dollars=names.pick((60, 70, 80, 90, 120)),
        delivery_days=tuple((place, more.rng.randint(1, 9)) for place in sorted(region.places)),
        stores=generate_stores(more, region),
        gift_cards=generate_gift_cards(more, region),
        club=generate_club(more, region),
    )  # fmt: skip


def _reviews(names: Names, region: Region, products: tuple[Product, ...]) -> tuple[Review, ...]:
    rng = names.rng
    reviews: list[Review] = []
    for product in products:
        mood = rng.choice(((5, 5, 4), (5, 4, 3), (4, 3, 2), (3, 2, 1), (5, 4, 1)))
        for author in rng.sample(region.people[1:], rng.choice((0, 1, 2, 2, 3))):
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


def _orders(
    names: Names, more: Names, region: Region, products: tuple[Product, ...]
) -> tuple[PastOrder, ...]:
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
        courier = more.pick(region.people[1:]).name
        papers = names.code(2, 4), more.code(3, 4), courier, _step_days(more)
        orders.append(PastOrder(number, days_ago, status, lines, *papers))
        number += rng.randint(11, 37)
    return tuple(orders)


def _step_days(names: Names) -> tuple[int, ...]:
    days = [0, 0]  # orders are paid at once, and some were placed yesterday
    for _ in range(3):
        days.append(days[-1] + names.rng.randint(1, 4))
    return tuple(days)
