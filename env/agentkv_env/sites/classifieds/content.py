"""The classifieds' listings, generated from a world seed."""

from dataclasses import dataclass
from typing import Literal

from agentkv_env.sites.classifieds import dealings, facts, places
from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region

NUM_LISTINGS = 72
SHARE_SOLD = 0.12
CONDITIONS = ("New", "Like new", "Used", "For parts")


@dataclass(frozen=True, slots=True)
class Category:
    """A category of listings; `slug` is its part of the address."""

    slug: str
    name: str


@dataclass(frozen=True, slots=True)
class Photo:
    """The text in a listing's photo, which the page does not repeat.

    `kind` says what `fact` is: a serial number on the type plate, a phone number on a note, the
    lowest price in dollars on a sign, or nothing to read.
    """

    kind: Literal["serial", "phone", "price", "none"]
    fact: str


@dataclass(frozen=True, slots=True)
class ListingRemark:
    """A public comment under a listing."""

    author: str
    body: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing; `price` is in whole dollars, `category` a slug and `seller` a handle."""

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
    """True if the seller delivers."""
    days_ago: int
    photo: Photo
    remarks: tuple[ListingRemark, ...]
    facts: facts.Facts
    spot: places.Spot
    is_sold: bool


@dataclass(frozen=True, slots=True)
class Seller:
    """The profile of a seller."""

    handle: str
    name: str
    town: str
    answers_in: str
    since: int
    """Year."""
    sales: int
    pick_up: str
    phone: str
    ratings: tuple[dealings.SellerRating, ...]


@dataclass(frozen=True, slots=True)
class ClassifiedsContent:
    """The initial content of the classifieds of one world."""

    categories: tuple[Category, ...]
    sellers: tuple[Seller, ...]
    listings: tuple[Listing, ...]
    saved: tuple[int, ...]
    """Ids of the listings that the signed-in user has saved."""
    offers: tuple[dealings.Offer, ...]
    alerts: tuple[dealings.Alert, ...]

    def seller(self, handle: str) -> Seller:
        """Return the seller with this handle."""
        return next(seller for seller in self.sellers if seller.handle == handle)

    def category(self, slug: str) -> Category:
        """Return the category with this slug."""
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


def generate(names: Names, region: Region) -> ClassifiedsContent:
    """Generate the classifieds of one world; three listings belong to the signed-in user."""
    rng = names.rng
    extra = Names(names.seed, "classifieds/more", names.taken)
    streets = places.streets(extra, region)
    me, *others = [person.handle for person in region.people]
    offering = others[:12]
    sellers = tuple(
        Seller(
            handle=person.handle,
            name=person.name,
            town=person.place,
            answers_in=names.pick(_ANSWER_TIMES),
            since=extra.rng.randint(2011, 2024),
            sales=extra.rng.randint(3, 240),
            pick_up=dealings.pick_up(extra),
            phone=f"555 {extra.rng.randint(2222, 7999)}",
            ratings=dealings.ratings(extra, [x for x in others if x != person.handle]),
        )
        for person in region.people
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
        title = names.title(pattern, colour=_COLOURS, brand=region.brands)
        place = names.pick(region.places)
        photo = _photo(names, number, prices[number - 1])
        listings.append(
            Listing(
                id=number,
                title=title,
                thing=thing,
                category=category,
                price=prices[number - 1],
                condition=names.pick(CONDITIONS),
                town=place,
                seller=seller,
                description=names.pick(_STORIES).format(years=years),
                delivery=rng.random() < 0.4,
                days_ago=ages[number - 1],
                photo=photo,
                remarks=tuple(
                    ListingRemark(author, names.pick(_QUESTIONS).format(number=rng.randint(12, 90)))
                    for author in names.sample(curious, rng.randint(0, 2))
                ),
                facts=facts.draw(extra, category, title.split()[1], photo.fact),
                spot=places.draw(extra, streets[place]),
                is_sold=seller != me and extra.rng.random() < SHARE_SOLD,
            )
        )
    saved = tuple(sorted(rng.sample([x.id for x in listings if x.seller != me], 2)))
    offers = dealings.offers(extra, [(x.id, x.price) for x in listings if x.seller == me], others)
    alerts = tuple(
        dealings.Alert(wanted.category, wanted.town, wanted.price + extra.rng.randint(5, 90))
        for wanted in extra.sample([x for x in listings if x.seller != me], 2)
    )
    return ClassifiedsContent(_CATEGORIES, sellers, tuple(listings), saved, offers, alerts)


def _photo(names: Names, number: int, price: int) -> Photo:
    """Choose the text in a listing's photo; every fourth photo has none."""
    rng = names.rng
    match number % 4:
        case 1:
            return Photo("serial", names.code(2, 4))
        case 2:
            return Photo("phone", f"555 {rng.randint(2222, 7999)}")
        case 3:
            return Photo("price", str(max(10, round(price * rng.uniform(0.7, 0.92)))))
    return Photo("none", "")
