"""Invented proper names of people, places, brands and titles, drawn from a seed.

Proper nouns are built from a few dozen syllables, so that a small tokenizer meets the same pieces
again in every world, while the names themselves differ. Evaluation worlds (seeds under a million)
and training worlds (the rest) share no name: each name belongs to one side by the parity of its
CRC-32, and a draw that falls on the wrong side is drawn again.
"""

import random
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

FIRST_TRAINING_SEED = 1_000_000
"""Smaller seeds make evaluation worlds, this and larger seeds make training worlds."""

_SYLLABLES = (
    "bar bel bri cal cor dal den dor el fan fen gar hal hen il jor kal ken kir lan lin lor mar "
    "mel mir nor ol pel pin quin ran ril sal sen sil tal tor ul val ven vor wen wil yar zan"
).split()
_FIRST_ENDINGS = "a an e en ia is o on us y".split()
_LAST_ENDINGS = "ane ard by ell er ett ley man ond son ton wright".split()
_PLACE_ENDINGS = "burg bury dale field ford haven mere mouth port stead ton wick".split()
_BRAND_ENDINGS = "ac eo ex ia ine io ix ora um us".split()
_ENDINGS = {*_FIRST_ENDINGS, *_LAST_ENDINGS, *_PLACE_ENDINGS, *_BRAND_ENDINGS}
_INVENTED = re.compile(f"(?:{'|'.join(_SYLLABLES)}){{1,2}}(?:{'|'.join(sorted(_ENDINGS))})")
_STREETS = "Lane Street Road Avenue Square Walk".split()


def side(seed: int) -> int:
    """Return 0 for an evaluation world and 1 for a training world."""
    return int(seed >= FIRST_TRAINING_SEED)


def side_of_name(name: str) -> int:
    """Return the side of a name, the parity of the CRC-32 of its UTF-8 bytes."""
    return zlib.crc32(name.encode()) % 2


def looks_invented(word: str) -> bool:
    """Return whether `word` has the form of an invented noun: one or two syllables and an ending.

    A few English words have this form as well: "Line", "Pine".
    """
    return word.istitle() and _INVENTED.fullmatch(word.lower()) is not None


@dataclass(frozen=True, slots=True)
class Person:
    """A person with an account on every site of a world."""

    name: str
    handle: str
    """User name in lower case, one word."""
    email: str
    place: str


class Names:
    """Draws names for one topic of one world.

    Topics have streams of their own, so more names for one site leave the other sites as they were.
    `taken` is shared by the topics of a world, and a name that is already in it is drawn again.
    """

    def __init__(self, seed: int, topic: str, taken: set[str] | None = None) -> None:
        self.seed = seed
        self.topic = topic
        self.taken = set() if taken is None else taken
        self.rng = random.Random(f"{seed}/{topic}")

    def accept(self, draw: Callable[[], str]) -> str:
        """Call `draw` until it returns a free name of this world's side; take and return the name.

        Raises:
            RuntimeError: 2,000 draws returned no such name, because the pool is too small.
        """
        wanted = side(self.seed)
        for _ in range(2000):
            name = draw()
            if name not in self.taken and side_of_name(name) == wanted:
                self.taken.add(name)
                return name
        raise RuntimeError(f"no free name left for {self.topic!r}; last tried {name!r}")

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of `choices`."""
        return self.rng.choice(choices)

    def sample(self, choices: Sequence[T], count: int) -> list[T]:
        """Return `count` different `choices` in random order."""
        return self.rng.sample(choices, count)

    def word(self, endings: Sequence[str], syllables: int = 1) -> str:
        """Return an invented proper noun of this side, with `syllables` syllables and an ending."""
        return self.accept(lambda: self._noun(endings, syllables))

    def person(self, place: str) -> Person:
        """Return a person from `place`; handle and email address follow from the name."""

        name = self.accept(
            lambda: f"{self._noun(_FIRST_ENDINGS, 1)} {self._noun(_LAST_ENDINGS, 2)}"
        )
        first, last = name.lower().split()
        return Person(name, f"{first}{last}", f"{first}.{last}@mail.example", place)

    def place(self) -> str:
        """Return the name of a town, one word."""
        return self.word(_PLACE_ENDINGS, self.rng.choice((1, 2)))

    def street(self) -> str:
        """Return the name of a street, without a number."""
        return f"{self.word(_LAST_ENDINGS)} {self.rng.choice(_STREETS)}"

    def brand(self) -> str:
        """Return the name of a brand, one word."""
        return self.word(_BRAND_ENDINGS, self.rng.choice((1, 2)))

    def product(self, brand: str, lines: Sequence[str], kind: str) -> str:
        """Return a name from `brand`, one of the `lines` and `kind`: "Velmarix Trail Kayak"."""
        return self.accept(lambda: f"{brand} {self.rng.choice(lines)} {kind}")

    def title(self, pattern: str, **choices: Sequence[str]) -> str:
        """Return a title from `pattern`; its fields in braces are drawn from `choices` by name."""
        return self.accept(
            lambda: pattern.format(**{key: self.rng.choice(of) for key, of in choices.items()})
        )

    def code(self, letters: int = 2, digits: int = 3) -> str:
        """Return a model number such as "KV-204", without characters that OCR confuses."""

        def draw() -> str:
            head = "".join(self.rng.choice("ACEHKMNPRWX") for _ in range(letters))
            return head + "-" + "".join(self.rng.choice("2345679") for _ in range(digits))

        return self.accept(draw)

    def _noun(self, endings: Sequence[str], syllables: int) -> str:
        """Return a word of this side that may be taken, because people may share a first name."""
        while True:
            stem = (self.rng.choice(_SYLLABLES) for _ in range(syllables))
            noun = "".join([*stem, self.rng.choice(endings)]).capitalize()
            if side_of_name(noun) == side(self.seed):
                return noun
