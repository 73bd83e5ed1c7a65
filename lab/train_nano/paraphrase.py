"""Goals in other words: sentences around them that ask for nothing, and other everyday verbs.

Templates have a few wordings each, which a small model learns by heart. These change the form of a
goal and leave its values and its meaning. None is a polite request, which training never sees
(`train_nano.wording`).
"""

import random
import re
from collections.abc import Mapping
from dataclasses import replace

from train_nano.episode import RecordedEpisode

BEFORE = (
    "I have little time today.",
    "This is for my neighbor.",
    "My aunt is coming on Sunday.",
    "I am new here.",
    "We are moving next month.",
    "It is raining again.",
    "The old one fell apart.",
    "My brother gave me this idea.",
    "I lost my notes.",
    "Nobody at work knows this.",
    "There is a party at our school.",
    "My phone is nearly empty.",
    "I promised it to a colleague.",
    "We talked about this at dinner.",
    "I keep forgetting things.",
    "The garden needs some care.",
    "A friend is in hospital.",
    "I started a diary.",
    "Our club meets tonight.",
    "I am preparing a lesson.",
    "My glasses are broken.",
    "The children are asleep.",
    "I was asked about it yesterday.",
    "They say it is easy.",
    "I have never done this before.",
    "My boss is waiting.",
    "It is for a letter to my cousin.",
    "I should have done it last week.",
    "We made a bet.",
    "I am planning a trip.",
)
AFTER = (
    "Thank you.",
    "Thanks a lot.",
    "It is urgent.",
    "Take your time.",
    "That is all.",
    "Nothing else is needed.",
    "I will check it later.",
    "Then we are done.",
    "My family will be glad.",
    "I am counting on it.",
)
VERBS: Mapping[str, tuple[str, ...]] = {
    "put": ("place", "drop"),
    "find": ("look up", "locate", "track down"),
    "open": ("go to", "visit", "bring up"),
    "read": ("look at", "check"),
    "show": ("bring up", "open"),
    "add": ("put", "place"),
    "save": ("keep", "store"),
    "write": ("post", "leave"),
    "send": ("write", "drop"),
    "search": ("look", "hunt"),
    "want": ("would like", "wish"),
    "need": ("want", "would like"),
}
"""Verbs of goals, and others of which one may stand in their place."""

WRAPPERS = (
    "Your task is this: {}",
    "The job: {}",
    "Here is what to do. {}",
    "One thing for today. {}",
    "To do: {}",
    "Next on my list: {}",
)


def paraphrase(episode: RecordedEpisode, rng: random.Random) -> RecordedEpisode:
    """Return `episode` with its goal in other words."""
    goal = episode.goal
    if rng.random() < 0.5:
        goal = _VERB.sub(lambda found: found[1] + _other(found[2], rng), goal)
    if rng.random() < 0.3:
        goal = rng.choice(WRAPPERS).format(goal)
    if rng.random() < 0.6:
        goal = f"{' '.join(rng.sample(BEFORE, rng.choice((1, 1, 2))))} {goal}"
    if rng.random() < 0.3:
        goal = f"{goal} {rng.choice(AFTER)}"
    return replace(episode, goal=goal)


_VERB = re.compile(rf"(^|[.!?:,] |\b(?:and|then|I|please) )({'|'.join(VERBS)})\b", re.IGNORECASE)
"""A verb where goals have one; names and titles on pages have theirs elsewhere."""


def _other(verb: str, rng: random.Random) -> str:
    other = rng.choice((verb.lower(), *VERBS[verb.lower()]))
    return other.capitalize() if verb[0].isupper() else other
