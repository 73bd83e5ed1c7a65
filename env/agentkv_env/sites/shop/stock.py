"""Kinds of products and their words, without proper names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product: name, materials and prices."""

    name: str
    materials: tuple[str, ...]
    dollars: tuple[int, int]
    """Lowest and highest price."""
    grams: tuple[int, int]
    sizes: bool = False
    """True if it comes in several sizes."""


def _kind(name: str, materials: str, dollars: tuple[int, int], grams: tuple[int, int],
          sizes: bool = False) -> Kind:  # fmt: skip
    return Kind(name, tuple(materials.split()), dollars, grams, sizes)


CATEGORIES: dict[str, tuple[Kind, ...]] = {
    "Audio": (
        _kind("Headphones", "aluminium plastic leather", (29, 240), (160, 390)),
        _kind("Radio", "walnut plastic bamboo", (19, 160), (400, 1900)),
        _kind("Record Player", "oak walnut acrylic", (79, 390), (2500, 6900)),
        _kind("Speaker", "fabric aluminium walnut", (25, 290), (350, 4200)),
    ),
    "Bags": (
        _kind("Backpack", "canvas nylon leather", (24, 160), (450, 1700), True),
        _kind("Suitcase", "aluminium nylon plastic", (49, 290), (2200, 4800), True),
        _kind("Tote Bag", "cotton canvas hemp", (9, 70), (150, 600)),
        _kind("Lunch Box", "steel bamboo plastic", (7, 45), (180, 700)),
    ),
    "Bedroom": (
        _kind("Pillow", "cotton linen wool", (12, 90), (400, 1300), True),
        _kind("Blanket", "wool cotton fleece", (19, 180), (700, 2400), True),
        _kind("Alarm Clock", "brass plastic oak", (11, 80), (200, 900)),
        _kind("Mirror", "brass oak steel", (25, 210), (1500, 7900)),
    ),
    "Camping": (
        _kind("Tent", "nylon canvas polyester", (69, 490), (1400, 6200), True),
        _kind("Sleeping Bag", "nylon wool polyester", (39, 260), (700, 2100), True),
        _kind("Camping Stove", "steel brass aluminium", (18, 130), (300, 1600)),
        _kind("Hammock", "cotton nylon hemp", (15, 110), (350, 1900)),
    ),
    "Garden": (
        _kind("Watering Can", "zinc plastic copper", (9, 60), (400, 1900)),
        _kind("Hedge Trimmer", "steel aluminium plastic", (35, 240), (1900, 4400)),
        _kind("Bird House", "pine oak cedar", (10, 70), (500, 2600)),
        _kind("Garden Chair", "teak steel rattan", (29, 210), (2800, 7400)),
    ),
    "Kitchen": (
        _kind("Kettle", "steel copper glass", (15, 140), (700, 1900)),
        _kind("Frying Pan", "steel iron copper", (14, 150), (800, 2900), True),
        _kind("Teapot", "glass porcelain iron", (12, 95), (400, 1700)),
        _kind("Knife Block", "oak bamboo walnut", (25, 220), (1200, 3900)),
    ),
    "Lighting": (
        _kind("Desk Lamp", "brass steel oak", (18, 170), (700, 2700)),
        _kind("Floor Lamp", "steel brass bamboo", (39, 310), (2400, 7800)),
        _kind("Lantern", "glass copper paper", (8, 75), (250, 1500)),
        _kind("Reading Light", "plastic aluminium steel", (9, 60), (90, 500)),
    ),
    "Office": (
        _kind("Desk Chair", "leather fabric oak", (69, 480), (7000, 16000)),
        _kind("Notebook", "paper leather linen", (4, 39), (120, 600), True),
        _kind("Pen Set", "steel brass walnut", (8, 120), (60, 400)),
        _kind("Bookshelf", "oak pine steel", (45, 390), (9000, 28000)),
    ),
    "Pets": (
        _kind("Dog Bed", "cotton fleece wool", (19, 150), (900, 3400), True),
        _kind("Cat Tree", "sisal pine fleece", (29, 230), (4000, 14000)),
        _kind("Fish Tank", "glass acrylic", (35, 310), (2900, 15000), True),
        _kind("Dog Leash", "leather nylon hemp", (7, 55), (100, 400)),
    ),
    "Sports": (
        _kind("Kayak", "polyester wood plastic", (190, 980), (12000, 28000)),
        _kind("Yoga Mat", "cork rubber cotton", (14, 95), (700, 2600)),
        _kind("Tennis Racket", "graphite aluminium wood", (25, 240), (240, 360)),
        _kind("Bike Helmet", "plastic cork carbon", (22, 190), (210, 420), True),
    ),
    "Tools": (
        _kind("Drill", "steel plastic aluminium", (39, 260), (1100, 2900)),
        _kind("Toolbox", "steel plastic oak", (18, 140), (1300, 6900), True),
        _kind("Ladder", "aluminium steel pine", (35, 260), (3900, 14000)),
        _kind("Tape Measure", "steel plastic brass", (5, 40), (90, 420)),
    ),
    "Toys": (
        _kind("Board Game", "cardboard wood linen", (12, 80), (400, 1900)),
        _kind("Kite", "nylon paper silk", (9, 75), (120, 700)),
        _kind("Puzzle", "cardboard wood cork", (6, 50), (200, 1400)),
        _kind("Train Set", "wood steel plastic", (29, 260), (900, 4900)),
    ),
}

LINES = (
    "Alpine Bright Calm Classic Coast Comfort Compact Duo Forest Nova Prime Swift Trail Urban"
).split()
COLOURS = "black blue brown green grey orange red silver white yellow".split()
SIZES = ("Small", "Medium", "Large")

BLURBS = (
    "A plain, well made {kind} for every day. The {material} is easy to clean and ages well.",
    "Made for people who use a {kind} often. {Material} outside, quiet and simple to use.",
    "Our lightest {kind} yet. The {material} comes from small workshops near {place}.",
    "A {kind} that lasts: {material}, few parts, and every one of them can be replaced.",
    "Designed in {place}. A {kind} of {material} with a calm look that fits any room.",
)

REVIEWS: dict[int, tuple[tuple[str, str], ...]] = {
    5: (
        ("Better than expected", "I use it every day and would buy it again at once."),
        ("Just right", "Arrived early, looks lovely, works well."),
        ("A joy", "Everybody who visits asks where it is from."),
    ),
    4: (
        ("Very good", "Does what it should. The packaging could be smaller."),
        ("Happy with it", "Good quality for the money, only the colour is a bit darker."),
    ),
    3: (
        ("It is all right", "Nothing special, but it works."),
        ("Fair", "Fine for the price. I had hoped for a bit more."),
    ),
    2: (
        ("Not for me", "It feels less solid than in the pictures."),
        ("Somewhat let down", "It works, but it took three weeks to arrive."),
    ),
    1: (
        ("Sent it back", "It broke in the first week."),
        ("Disappointing", "The size was not as described."),
    ),
}
