"""The classifieds' listings, generated from a world seed."""

from dataclasses import dataclass
from typing import Literal

from agentkv_env.sites.names import Names
from agentkv_env.sites.town import Town

NUM_LISTINGS = 72
CONDITIONS = ("New", "Like new", "Used", "For parts")


@dataclass(frozen=True, slots=True)
class Category:
    """A kind of thing; `slug` is its part of the address."""

    slug: str
    name: str


@dataclass(frozen=True, slots=True)
class Photo:
    """What can be read in a listing's photo, and nowhere else.

    `kind` says what `fact` is: a serial number on the type plate, a phone number on a note, the
    lowest price in dollars on a sign, or nothing to read.
    """

    kind: Literal["serial", "phone", "price", "none"]
    fact: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A public comment under a listing."""

    author: str
    body: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Something for sale; `price` in whole dollars, `category` a slug, `seller` a handle."""

    id: int
    title: str
    thing: str
    category: str
    price: int
    condition: str
    town: str
    seller: str
    description: str
    delivery: bool
    """The seller can bring it."""
    days_ago: int
    photo: Photo
    remarks: tuple[Remark, ...]


@dataclass(frozen=True, slots=True)
class Seller:
    """What a seller's page says."""

    handle: str
    name: str
    town: str
    answers_in: str
    rating: int
    """Tenths of a star, 20 to 50."""


@dataclass(frozen=True, slots=True)
class Content:
    """Everything on the classifieds of one world before anybody acts."""

    categories: tuple[Category, ...]
    sellers: tuple[Seller, ...]
    listings: tuple[Listing, ...]
    saved: tuple[int, ...]
    """Listings the signed-in user has saved."""

    def seller(self, handle: str) -> Seller:
        """The seller called `handle`."""
        return next(seller for seller in self.sellers if seller.handle == handle)

    def category(self, slug: str) -> Category:
        """The category with this `slug`."""
        return next(category for category in self.categories if category.slug == slug)


_THINGS = {
    "bikes": "bicycle tandem trailer tricycle unicycle".split(),
    "boats": "canoe dinghy kayak paddle raft".split(),
    "cameras": "camera flash lens projector tripod".split(),
    "furniture": "armchair bench bookcase desk table wardrobe".split(),
    "garden": "ladder mower shed sprinkler wheelbarrow".split(),
    "kitchen": "blender kettle mixer oven toaster".split(),
    "music": "accordion drum guitar piano violin".split(),
    "toys": "dollhouse kite puzzle railway sled".split(),
}
_CATEGORIES = (
    Category("bikes", "Bicycles"),
    Category("boats", "Boats"),
    Category("cameras", "Cameras"),
    Category("furniture", "Furniture"),
    Category("garden", "Garden tools"),
    Category("kitchen", "Kitchen"),
    Category("music", "Music"),
    Category("toys", "Toys"),
)
_COLOURS = "Black Blue Brown Green Grey Orange Red Silver White Yellow".split()
_STORIES = (
    "Bought {years} years ago and kept in a dry cellar. Smoke-free home.",
    "Was a gift and used {years} times at most.",
    "A few scratches, works as on the first day. Pick up in the evening.",
    "We are moving and it does not fit. About {years} years old.",
    "From my grandmother's house. I cannot say more about it.",
    "Complete with its papers and {years} spare parts.",
)
_QUESTIONS = (
    "Is it still available?",
    "Would you take {number} dollars for it?",
    "Can I see it on Saturday?",
    "How heavy is it? I would come by bus.",
    "I have the same one, it is {number} cm wide.",
)
_ANSWER_TIMES = "an hour|half a day|a day|two days".split("|")


def generate(names: Names, town: Town) -> Content:
    """The classifieds of one world; the signed-in user has three listings of their own."""
    rng = names.rng
    me, *others = [person.handle for person in town.people]
    offering = others[:12]
    sellers = tuple(
        Seller(
            handle=person.handle,
            name=person.name,
            town=person.place,
            answers_in=names.pick(_ANSWER_TIMES),
            rating=rng.randint(28, 50),
        )
        for person in town.people
        if person.handle == me or person.handle in offering
    )
    mine = set(rng.sample(range(4, NUM_LISTINGS), 3))
    prices = rng.sample(range(15, 900), NUM_LISTINGS)
    ages = rng.sample(range(1, 200), NUM_LISTINGS)
    listings = []
    for number in range(1, NUM_LISTINGS + 1):
        category = _CATEGORIES[number % len(_CATEGORIES)].slug
        thing = names.pick(_THINGS[category])
        pattern = f"{{colour}} {{brand}} {thing}"
        seller = me if number in mine else names.pick(offering)
        curious = [handle for handle in others if handle != seller]
        years = rng.randint(2, 19)
        listings.append(
            Listing(
                id=number,
                title=names.title(pattern, colour=_COLOURS, brand=town.brands),
                thing=thing,
                category=category,
                price=prices[number - 1],
                condition=names.pick(CONDITIONS),
                town=names.pick(town.places),
                seller=seller,
                description=names.pick(_STORIES).format(years=years),
                delivery=rng.random() < 0.4,
                days_ago=ages[number - 1],
                photo=_photo(names, number, prices[number - 1]),
                remarks=tuple(
                    Remark(author, names.pick(_QUESTIONS).format(number=rng.randint(12, 90)))
                    for author in names.sample(curious, rng.randint(0, 2))
                ),
            )
        )
    saved = tuple(sorted(rng.sample([x.id for x in listings if x.seller != me], 2)))
    return Content(_CATEGORIES, sellers, tuple(listings), saved)


def _photo(names: Names, number: int, price: int) -> Photo:
    """Every listing but each fourth has something to read in its photo."""
    rng = names.rng
    match number % 4:
        case 1:
            return Photo("serial", names.code(2, 4))
        case 2:
            return Photo("phone", f"555 {rng.randint(2222, 7999)}")
        case 3:
            return Photo("price", str(max(10, round(price * rng.uniform(0.7, 0.92)))))
    return Photo("none", "")
