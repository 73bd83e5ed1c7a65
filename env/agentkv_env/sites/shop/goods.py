"""The products of the shop, generated from the world's seed."""

from dataclasses import dataclass, replace

from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region
from agentkv_env.sites.shop.stock import BLURBS, CATEGORIES, COLOURS, LINES, SIZES, Kind

PRODUCTS_PER_KIND = 3
NUM_SOLD_OUT = 4


@dataclass(frozen=True, slots=True)
class Product:
    """A product; `number` is part of its address: /product/12."""

    number: int
    name: str
    brand: str
    category: str
    kind: str
    cents: int
    """Unique among the products of a category."""
    colours: tuple[str, ...]
    sizes: tuple[str, ...]
    """Empty if there is only one size."""
    facts: tuple[tuple[str, str], ...]
    """The specification table."""
    blurb: str
    model: str
    """Model number; only in the picture, on the label."""
    grams: int
    """Weight; only in the picture, on the label."""
    club_cents: int | None
    """Club price, only in the picture, on a tag; None for most products."""

    @property
    def picture(self) -> str:
        """Key of the photo; products of a kind share photos, except those with a price tag."""
        if self.club_cents is not None:
            return f"tag-{self.number}"
        return f"photo-{slug(self.kind)}-{self.number % 2}"


def slug(name: str) -> str:
    """Return `name` as part of an address: in lower case, with dashes for spaces."""
    return name.lower().replace(" ", "-")


def generate_products(
    names: Names, region: Region, categories: tuple[str, ...]
) -> tuple[Product, ...]:
    """Generate products of every kind in `categories`, each kind by several brands."""
    products: list[Product] = []
    for category in categories:
        prices: set[int] = set()
        drawn: list[Product] = []
        for kind in CATEGORIES[category]:
            for brand in names.sample(region.brands, PRODUCTS_PER_KIND):
                product = _product(names, region, brand=brand, category=category, kind=kind)
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


def generate_sold_out(
    names: Names, region: Region, products: tuple[Product, ...]
) -> tuple[Product, ...]:
    """Generate sold-out products with prices between those of their category."""
    found: list[Product] = []
    kinds = [(category, kind) for category in sorted({one.category for one in products})
             for kind in CATEGORIES[category]]  # fmt: skip
    for category, kind in names.sample(kinds, len(kinds)):
        of_kind = [one for one in products if one.kind == kind.name]
        taken = {one.cents for one in (*products, *found) if one.category == category}
        prices = sorted(one.cents for one in of_kind)
        free = [cents for cents in range(prices[0] + 100, prices[-1], 100) if cents not in taken]
        if len(found) < NUM_SOLD_OUT and free:
            brands = [
                brand for brand in region.brands if brand not in {one.brand for one in of_kind}
            ]
            drawn = _product(names, region, brand=names.pick(brands), category=category, kind=kind)
            facts = dict(drawn.facts) | {"Delivery": f"back in {names.rng.randint(2, 9)} weeks"}
            found.append(replace(drawn, number=len(products) + len(found) + 1,
                                 cents=names.pick(free), facts=tuple(facts.items())))  # fmt: skip
    return tuple(found)


def _product(names: Names, region: Region, *, brand: str, category: str, kind: Kind) -> Product:
    rng = names.rng
    material, place = rng.choice(kind.materials), rng.choice(region.places)
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
