"""The initial private messages to the signed-in user."""

from dataclasses import dataclass

from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region

_LETTERS = (
    ("The key", "The key is under pot number {number}. The code of the door is {code}."),
    ("My phone", "Please call me at 555 {code}, best after {number} minutes past six."),
    ("The meeting", "We meet in {place} on {day} at gate {number}. The code is {code}."),
    ("A parcel for you", "Your parcel is in {place}. Ask for number {code}."),
    ("The {brand} lamp", "I can sell it for {number} dollars. Take line {other} to {place}."),
    ("Thank you", "That helped. I paid {number} dollars and not {other}."),
    ("Choir on {day}", "We sing {number} songs in {place}. Bring {other} chairs."),
    ("Which book?", "It is from {brand}, page {code}. Tell me how you like it."),
)
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
NUM_LETTERS = 6


@dataclass(frozen=True, slots=True)
class Letter:
    """A private message to the signed-in user."""

    sender: str
    subject: str
    body: str
    hours_ago: int
    is_read: bool


def letters(names: Names, region: Region) -> tuple[Letter, ...]:
    """Generate `NUM_LETTERS` messages by different people, newest last; the last two are unread."""
    rng = names.rng
    senders = names.sample([person.handle for person in region.people[1:]], NUM_LETTERS)
    ages = sorted(names.sample(range(2, 24 * 40), NUM_LETTERS), reverse=True)
    result = []
    for index, (subject, body) in enumerate(names.sample(_LETTERS, NUM_LETTERS)):
        number, other = names.sample(range(12, 60), 2)
        words = {
            "number": number,
            "other": other,
            "code": rng.randint(2222, 9799),
            "place": names.pick(region.places),
            "brand": names.pick(region.brands),
            "day": names.pick(_DAYS),
        }
        is_read = index < NUM_LETTERS - 2
        result.append(
            Letter(
                senders[index], subject.format(**words), body.format(**words), ages[index], is_read
            )
        )
    return tuple(result)
