"""The forum's boards, threads and comments, generated from a world seed."""

from dataclasses import dataclass, replace

from agentkv_env.sites.forum.boards import BOARDS, Board, Charter, charters
from agentkv_env.sites.forum.extras import Extras, extras
from agentkv_env.sites.forum.letters import Letter, letters
from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region

NUM_THREADS = 64
NUM_OWN_COMMENTS = 3
FLAIRS_OF_MEMBERS = "Baker Beginner Driver Gardener Helper Reader Singer Teacher".split()


@dataclass(frozen=True, slots=True)
class Member:
    """The profile of a member."""

    handle: str
    bio: str
    joined: int
    """Year."""
    flair: str


@dataclass(frozen=True, slots=True)
class Comment:
    """An answer to a thread, or to the comment with the id `parent`."""

    id: int
    thread: int
    parent: int | None
    author: str
    body: str
    score: int
    minutes_ago: int


@dataclass(frozen=True, slots=True)
class Poster:
    """The text in a thread's picture, which the page does not repeat."""

    lines: tuple[str, ...]
    place: str
    date: str
    code: str


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread on a board; ids count from 1 and are not in order of age."""

    id: int
    board: str
    author: str
    title: str
    body: str
    score: int
    minutes_ago: int
    poster: Poster | None
    extras: Extras
    comments: tuple[Comment, ...]


@dataclass(frozen=True, slots=True)
class ForumContent:
    """The initial content of the forum of one world."""

    boards: tuple[Board, ...]
    members: tuple[Member, ...]
    threads: tuple[Thread, ...]
    subscribed: tuple[str, ...]
    """Names of the boards that the signed-in user subscribes to."""
    charters: tuple[Charter, ...]
    """One charter per board, in the order of the boards."""
    letters: tuple[Letter, ...]
    saved: tuple[int, ...]
    """Ids of the threads that the signed-in user has saved."""

    def member(self, handle: str) -> Member:
        """Return the member with this handle."""
        return next(member for member in self.members if member.handle == handle)


_TITLES = {
    "books": ("Which {adjective} book about {place} to read", "The {adjective} library in {place}"),
    "cooking": ("My {adjective} soup from {place}", "The {adjective} bakery in {place} is back"),
    "cycling": ("A {adjective} ride from {place}", "Loose chain on a {adjective} {brand} bicycle"),
    "gardening": ("{adjective} tomatoes in {place}", "How to cut a {adjective} hedge in {place}"),
    "localnews": ("{place} gets a {adjective} bridge", "The {adjective} market in {place} moves"),
    "music": ("A {adjective} choir in {place}", "Tuning my {adjective} {brand} guitar"),
    "repairs": ("My {adjective} {brand} kettle hums", "Who repairs a {adjective} {brand} lamp"),
    "travel": ("A {adjective} weekend in {place}", "The {adjective} train to {place}"),
}  # fmt: skip
_ADJECTIVES = (
    "big bright cheap famous fine good great green late little long new plain quiet red round "
    "short slow small strange wet"
).split()
_BODIES = (
    "I have thought about this for a week and would like to hear from people who know better.",
    "Short version: it works. Longer version: it took three tries and a borrowed ladder.",
    "Does anybody have the same experience, or is it only me?",
    "Here is what I found so far. Corrections are welcome.",
    "We went there with the children and everybody had an opinion afterwards.",
    "Please be kind, this is my first thread on this board.",
)
_REPLIES = (
    "I paid {number} dollars for mine and never looked back.",
    "Ask for it in {place}, they know.",
    "It took me {number} minutes, not counting the tea.",
    "The best one is from {brand}.",
    "I would wait until {month}.",
    "Go to {place} on a weekday and take number {number}.",
    "My neighbour swears by {brand}.",
    "No. I tried {number} times.",
    "We do this every {month} in {place}.",
    "Bring {number} bags and an umbrella.",
)
_ANSWERS = (
    "Thank you, that helps.",
    "Are you sure about that?",
    "Same here, {number} times at least.",
    "In {place} they say the opposite.",
    "Only in {month}.",
)
_MONTHS = (
    "January February March April May June July August September October November December"
).split()
_HOBBIES = "baking|birds|chess|choirs|clocks|kites|maps|old radios|rowing|trains".split("|")
_BIOS = (
    "I live in {place} and like {hobby} and {other}.",
    "From {place}. Ask me about {hobby}.",
    "{hobby}, {other}, long walks around {place}.",
)
_EVENTS = "BIKE RALLY|BOOK SWAP|CHOIR NIGHT|GARDEN WALK|REPAIR DAY|SEED SALE|SOUP DAY".split("|")
_EVENT_BOARDS = "cycling books music gardening repairs gardening cooking".split()
_HALLS = "CITY HALL|OLD MILL|RIVER HOUSE|SCHOOL YARD|STATION HALL".split("|")
_EVENT_TITLES = "the poster is here|who is coming|join us".split("|")


def generate(names: Names, region: Region) -> ForumContent:
    """Generate a forum: eight boards and `NUM_THREADS` threads, every fourth with a poster."""
    rng = names.rng
    more = Names(names.seed, "forum/more", names.taken)
    handles = [person.handle for person in region.people]
    members = tuple(
        Member(
            person.handle,
            _bio(names, person.place),
            rng.randint(2009, 2024),
            more.pick(FLAIRS_OF_MEMBERS),
        )
        for person in region.people
    )
    next_comment = 1
    threads = []
    ages = sorted(rng.sample(range(20, 60 * 24 * 9), NUM_THREADS))
    rng.shuffle(ages)
    scores = rng.sample(range(3, 400), NUM_THREADS)
    for number in range(1, NUM_THREADS + 1):
        poster = None
        if number % 4 == 0:
            event = rng.randrange(len(_EVENTS))
            board = _EVENT_BOARDS[event]
            pattern = f"{_EVENTS[event].capitalize()} in {{place}}: {{tail}}"
            title = names.title(pattern, place=region.places, tail=_EVENT_TITLES)
            poster = _poster(names, _EVENTS[event])
            body = "Everything is on the poster."
        else:
            board = BOARDS[number * 3 // 4 % len(BOARDS)].name
            title = _thread_title(names, region, board)
            body = names.pick(_BODIES)
        author, *others = names.sample(handles[1:], 6)
        comments = _comments(names, region, number, next_comment, others, ages[number - 1])
        next_comment += len(comments)
        threads.append(
            Thread(
                id=number,
                board=board,
                author=author,
                title=title,
                body=body,
                score=scores[number - 1],
                minutes_ago=ages[number - 1],
                poster=poster,
                extras=extras(more, region, number, is_poster=poster is not None),
                comments=comments,
            )
        )
    subscribed = tuple(sorted(names.sample([board.name for board in BOARDS], 3)))
    _add_own(more, region, handles[0], threads, next_comment)
    return ForumContent(
        BOARDS,
        members,
        tuple(threads),
        subscribed,
        charters=charters(more, handles[1:]),
        letters=letters(more, region),
        saved=tuple(sorted(more.sample(range(1, NUM_THREADS + 1), 2))),
    )


def _add_own(
    names: Names, region: Region, me: str, threads: list[Thread], next_comment: int
) -> None:
    """Add a comment by the signed-in user to `NUM_OWN_COMMENTS` threads."""
    for index in sorted(names.sample(range(NUM_THREADS), NUM_OWN_COMMENTS)):
        thread = threads[index]
        own = Comment(
            next_comment,
            thread.id,
            None,
            me,
            _reply(names, region, _REPLIES),
            names.rng.randint(1, 59),
            names.rng.randint(1, thread.minutes_ago - 1),
        )
        threads[index] = replace(thread, comments=(*thread.comments, own))
        next_comment += 1


def _thread_title(names: Names, region: Region, board: str) -> str:
    def draw() -> str:
        title = names.pick(_TITLES[board]).format(
            adjective=names.pick(_ADJECTIVES),
            place=names.pick(region.places),
            brand=names.pick(region.brands),
        )
        return title[0].upper() + title[1:]

    return names.accept(draw)


def _poster(names: Names, event: str) -> Poster:
    day = names.pick(("FRIDAY", "SATURDAY", "SUNDAY"))
    date = f"{day} {names.rng.randint(2, 28)} {names.pick(_MONTHS).upper()}"
    hall = names.pick(_HALLS)
    code = str(names.rng.randint(2222, 9799))  # OCR confuses letters and digits in mixed codes
    return Poster((event, hall, date, f"CODE {code}"), hall, date, code)


def _comments(
    names: Names, region: Region, thread: int, first_id: int, authors: list[str], age: int
) -> tuple[Comment, ...]:
    """Generate two to five comments by different people; about every third is a reply."""
    rng = names.rng
    scores = rng.sample(range(1, 60), 5)
    result: list[Comment] = []
    for index, author in enumerate(authors[: rng.randint(2, 5)]):
        top = [comment for comment in result if comment.parent is None]
        parent = names.pick(top) if top and rng.random() < 0.35 else None
        body = _reply(names, region, _REPLIES if parent is None else _ANSWERS)
        since = parent.minutes_ago if parent else age
        result.append(
            Comment(
                first_id + index,
                thread,
                parent.id if parent else None,
                author,
                body,
                scores[index],
                rng.randint(1, max(1, since - 1)),
            )
        )
    return tuple(result)


def _reply(names: Names, region: Region, patterns: tuple[str, ...]) -> str:
    return names.pick(patterns).format(
        number=names.rng.randint(2, 40),
        place=names.pick(region.places),
        brand=names.pick(region.brands),
        month=names.pick(_MONTHS),
    )


def _bio(names: Names, place: str) -> str:
    hobby, other = names.sample(_HOBBIES, 2)
    text = names.pick(_BIOS).format(place=place, hobby=hobby, other=other)
    return text[0].upper() + text[1:]
