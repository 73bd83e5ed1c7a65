"""The facts of a listing by category: brand, year and two measures."""

from dataclasses import dataclass

from agentkv_env.sites.names import Names

OLDEST_YEAR = 1950
NEWEST_YEAR = 2026
MOST = 99_999


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure in whole numbers: its key, its unit and its usual range."""

    key: str
    unit: str
    least: int
    most: int

    @property
    def asked(self) -> str:
        """The label of the form field."""
        return f"{self.key} in {self.unit}"

    def value(self, number: object) -> str:
        """The text in the table."""
        return f"{number} {self.unit}"


MEASURES = {
    "bikes": (Measure("Frame", "cm", 41, 64), Measure("Mileage", "km", 120, 9700)),
    "boats": (Measure("Length", "cm", 210, 560), Measure("Weight", "kg", 3, 96)),
    "cameras": (Measure("Weight", "grams", 210, 1900), Measure("Battery", "hours", 2, 40)),
    "furniture": (Measure("Width", "cm", 40, 240), Measure("Height", "cm", 42, 230)),
    "garden": (Measure("Weight", "kg", 2, 60), Measure("Length", "cm", 60, 420)),
    "kitchen": (Measure("Power", "watts", 300, 2400), Measure("Weight", "grams", 700, 9000)),
    "music": (Measure("Length", "cm", 30, 150), Measure("Weight", "kg", 2, 80)),
    "toys": (Measure("Pieces", "parts", 2, 900), Measure("Width", "cm", 20, 140)),
}
"""By category slug."""

Facts = tuple[tuple[str, str], ...]


def draw(names: Names, category: str, brand: str, unlike: str) -> Facts:
    """Generate the facts of a listing; none contains the number `unlike` of the photo."""
    rng = names.rng

    def number(least: int, most: int) -> int:
        while str(drawn := rng.randint(least, most)) == unlike:
            pass
        return drawn

    measured = (
        (each.key, each.value(number(each.least, each.most))) for each in MEASURES[category]
    )
    return (("Brand", brand), ("Year", str(rng.randint(1985, NEWEST_YEAR - 1))), *measured)
