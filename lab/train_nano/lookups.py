"""Synthetic episodes that use facts of earlier pages: lookups and gatherings.

A lookup reads facts and types or answers them some pages later. A gathering answers with one fact
of every page. Facts follow a key, `Warranty | 3 years`, as on the sites. Several pages may have the
same key with different values, so the page of a fact matters.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentkv.models.scripted import resolve
from agentkv_env.page import Box, Node, Page
from train_nano.drills import Drills, DrillStep
from train_nano.episode import RecordedEpisode, RecordedTurn

_NOWHERE = Box(0, 0, 0, 0)
_KEYS = (
    "Price|Founded|Population|Length|Rating|Seller|Owner|Mayor|Opened|Weight|Stock|Warranty|Material|"
    "Made in|Delivery|Condition|Town|Phone|Code|Model|Size|Colour|Street|Bus line|Day|Hours|Ticket|"
    "Room|Author|Height|Battery life|Serial number|Opening hours|Member since|Next to|Contact"
).split("|")
_FIELDS = ("Comment", "Message", "Text", "Subject", "Gift note", "Coupon code", "Title", "Search")
_VISITS = ("Open {}", "Go to {}", "Look at {}", "Find {}")
_READINGS = (" and read the {}", " and note the {}", " and remember the {}", " and look up its {}")
_TYPINGS = (
    "type the {0} of {1} into {2}", "write the {0} of {1} in the field {2}", "put the {0} into {2}",
    "enter the {0} as {2}", "set {2} to the {0} of {1}",
)  # fmt: skip
_LISTINGS = (
    "Look up the {0} of {1}",
    "Read the {0} of {1}",
    "Note the {0} of {1}",
    "Find out the {0} of {1}",
)
_GATHERINGS = (
    "Answer with the {} in this order, joined by commas.",
    "Answer with all {}, joined by commas.",
    "Give all {} in this order, with commas between.",
)
_JOINTS = ((", ", " and "), (", ", ", "), ("; ", "; "), (", ", " and "))
_LASTS = ("At the end, open", "Then go to", "At last look at", "Then open")
_COUNTS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight")
_ANSWERS = ("tell me the {0} of {1}", "answer with the {0}", "what is the {0} of {1}?")


@dataclass(frozen=True, slots=True)
class _Subject:
    """The subject of a page, with facts as pairs of a key and a value."""

    name: str
    facts: tuple[tuple[str, str], ...]
    wanted: int | None
    """Index of the fact that a later step needs."""


def lookup_episode(drills: Drills, num_elements: int) -> RecordedEpisode:
    """Generate a lookup over three to a dozen pages of up to `num_elements` elements."""
    rng = drills.rng
    drills.reset_names()
    count = rng.choice((1, 1, 2, 2, 3, 4))
    keys = rng.sample(_KEYS, 8)
    subjects = [_draw_subject(drills, keys, is_wanted=rng.random() < 0.7) for _ in range(count)]
    if all(subject.wanted is None for subject in subjects):
        subjects[0] = replace(subjects[0], wanted=0)
    detours = [drills.step() for _ in range(rng.choice((0, 0, 1, 2)))]
    requests = [_visit_request(rng, subject) for subject in subjects]
    requests += [detour.request for detour in detours]
    asked = [subject for subject in subjects if subject.wanted is not None]
    uses = [_draw_use(rng, subject, is_last=subject is asked[-1]) for subject in asked]
    goal = _join_sentences(rng, [*requests, *(request for request, _ in uses)])
    turns: list[RecordedTurn] = []

    def turn(page: Page, line: str) -> None:
        before = [turn.page for turn in turns]
        turns.append(RecordedTurn(page, resolve(line, page, goal=goal, before=before)))

    def size() -> int:
        return rng.randint(max(1, num_elements // 3), num_elements)

    previous: tuple[Node, ...] = ()
    for subject in subjects:
        menu = _link_step(subject.name)
        turn(drills.page([menu], size(), first=previous), menu.line)
        previous = _fact_nodes(subject)
    for detour in detours:
        turn(drills.page([detour], size(), first=previous), detour.line)
        previous = ()
    for subject, (_, line) in zip(asked, uses, strict=True):
        if line.startswith("type"):
            field = drills.field(line.partition(": ")[2].partition("]")[0])
            turn(drills.page([field], size(), first=previous), line)
        else:
            turn(drills.page([], size(), first=previous), line)
        previous = ()
        assert subject.wanted is not None
    if uses[-1][1].startswith("type"):
        turn(drills.page([], size()), "stop []")
    return RecordedEpisode(goal, tuple(turns), "errand")


def gathering_episode(drills: Drills, num_elements: int) -> RecordedEpisode:
    """Generate an episode whose answer lists one fact from each of two to eight pages.

    The final page is sometimes another one, so that all facts are on earlier pages.
    """
    rng = drills.rng
    drills.reset_names()
    keys = rng.sample(_KEYS, 6)
    shared = rng.random() < 0.7
    subjects = []
    for _ in range(rng.randint(2, 8)):
        subject = _draw_subject(drills, keys, is_wanted=True)
        if shared and keys[0] not in (key for key, _ in subject.facts):
            at = rng.randrange(len(subject.facts) + 1)
            facts = (*subject.facts[:at], (keys[0], drills.value()), *subject.facts[at:])
            subject = replace(subject, facts=facts)
        if shared:
            wanted = [key for key, _ in subject.facts].index(keys[0])
            subject = replace(subject, wanted=wanted)
        subjects.append(subject)
    names = [subject.name for subject in subjects]
    if shared:
        asked = rng.choice(_LISTINGS).format(_key_text(rng, subjects[0]), _join_list(rng, names))
    else:
        rest = [f"the {_key_text(rng, each)} of {each.name}" for each in subjects]
        asked = rng.choice(("Look up ", "Read ", "Find out ")) + _join_list(rng, rest)
    last = [_draw_subject(drills, keys, is_wanted=False)] if rng.random() < 0.4 else []
    requests = [asked, *(f"{rng.choice(_LASTS)} {each.name}" for each in last)]
    goal = f"{'. '.join(requests)}. {rng.choice(_GATHERINGS).format(_COUNTS[len(subjects)])}"
    answer = ", ".join(each.facts[each.wanted or 0][1] for each in subjects)
    turns: list[RecordedTurn] = []
    previous: tuple[Node, ...] = ()
    for subject in (*subjects, *last, None):
        steps = [] if subject is None else [_link_step(subject.name)]
        size = rng.randint(1, max(1, num_elements // 3))
        page = drills.page(steps, size, first=previous)
        line = steps[0].line if steps else f"stop [{answer}]"
        turns.append(
            RecordedTurn(page, resolve(line, page, goal=goal, before=[t.page for t in turns]))
        )
        previous = () if subject is None else _fact_nodes(subject)
    return RecordedEpisode(goal, tuple(turns), "gathering")


def _join_list(rng: random.Random, parts: Sequence[str]) -> str:
    between, before_last = rng.choice(_JOINTS)
    return between.join(parts[:-1]) + before_last + parts[-1]


def _draw_subject(drills: Drills, keys: Sequence[str], *, is_wanted: bool) -> _Subject:
    chosen = drills.rng.sample(keys, drills.rng.randint(1, 5))
    facts = tuple((key, drills.value()) for key in chosen)
    return _Subject(drills.name(), facts, drills.rng.randrange(len(facts)) if is_wanted else None)


def _visit_request(rng: random.Random, subject: _Subject) -> str:
    text = rng.choice(_VISITS).format(subject.name)
    if subject.wanted is not None and rng.random() < 0.6:
        text += rng.choice(_READINGS).format(_key_text(rng, subject))
    return text


def _key_text(rng: random.Random, subject: _Subject) -> str:
    assert subject.wanted is not None
    key = subject.facts[subject.wanted][0]
    return key.lower() if rng.random() < 0.7 else key


def _draw_use(rng: random.Random, subject: _Subject, *, is_last: bool) -> tuple[str, str]:
    """Draw a use of the wanted fact: the request in the goal and the line of the solution."""
    assert subject.wanted is not None
    value, key = subject.facts[subject.wanted][1], _key_text(rng, subject)
    if is_last and rng.random() < 0.5:
        return rng.choice(_ANSWERS).format(key, subject.name), f"stop [{value}]"
    field = rng.choice(_FIELDS)
    request = rng.choice(_TYPINGS).format(key, subject.name, field)
    return request, f"type [textbox: {field}] [{value}] [{rng.randint(0, 1)}]"


def _fact_nodes(subject: _Subject) -> tuple[Node, ...]:
    heading = Node("element", "heading", subject.name, _NOWHERE)
    rows = (Node("text", "text", f"{key} | {value}", _NOWHERE) for key, value in subject.facts)
    return (heading, *rows)


def _link_step(name: str) -> DrillStep:
    return DrillStep("", Node("element", "link", name, _NOWHERE), f"click [link: {name}]")


def _join_sentences(rng: random.Random, parts: Sequence[str]) -> str:
    joint = rng.choice((". ", ". Then ", ", then "))
    text = ""
    for part in parts:
        text += (joint if text else "") + part
    pieces = [piece[:1].upper() + piece[1:] for piece in text.split(". ")]
    text = ". ".join(pieces)
    return text if text.endswith("?") else text + "."
