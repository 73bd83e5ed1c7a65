"""Quoting: one page, many answers. The densest drill for finding a number and copying words.

The first words of each answer are given, for nothing says which element is meant; the rest counts.
"""

import random

from agentkv.dialog.prompt import PlainTemplate
from agentkv.dialog.reply import label
from agentkv_env.page import Node, Page
from agentkv_env.serialize import neutralize
from train_nano.episode import Row, encode_page

_TYPED = frozenset({"textbox", "searchbox"})


def quoting(
    rng: random.Random, template: PlainTemplate, goal: str, page: Page, *, count: int, weight: float
) -> Row:
    """A row of `goal`, `page` and `count` replies to it, each of which quotes page or goal."""
    opening = template.opening(goal)
    seen = encode_page(template, page)
    act = seen[-1]
    ids = opening + seen[:-1]
    weights = [0.0] * len(ids)
    elements = [node for node in page.nodes if node.id is not None and node.name]
    facts = [neutralize(node.name) for node in page.nodes if node.name.count(" | ") == 1]
    for _ in range(count if elements else 0):
        fields = [node for node in elements if node.role in _TYPED]
        node = rng.choice(fields if fields and rng.random() < 0.3 else elements)
        if facts and rng.random() < 0.4:
            before, after = _fact(rng.choice(facts))
        else:
            before, after = _reply(rng, node, goal, page)
        whole = template.reply(before + after)
        given = _common(template.reply(before)[:-1], whole)
        rest = whole[len(given) :]
        ids += [act, *given, *rest]
        weights += [0.0] * (1 + len(given)) + [weight] * len(rest)
    return Row(ids, weights, list(range(len(ids))))


def _fact(line: str) -> tuple[str, str]:
    """A key is given; it, its value and the answer are to be said."""
    key, _, value = line.partition(" | ")
    first, space, rest = key.partition(" ")
    return f"from {first}", f"{space}{rest} | {value}\n```stop [{value}]```"


def _reply(rng: random.Random, node: Node, goal: str, page: Page) -> tuple[str, str]:
    """What is given of a reply, and what is to be said."""
    name = label(node)
    if node.role in _TYPED:
        source = goal if rng.random() < 0.5 else neutralize(rng.choice(page.nodes).name)
        words = source.split()
        start = rng.randrange(max(1, len(words) - 1))
        phrase = words[start : start + rng.randint(2, 6)]
        if len(phrase) > 1:
            said = f"at {name}\n```type [{node.id}] ["
            return said + phrase[0], f" {' '.join(phrase[1:])}] [{rng.randint(0, 1)}]```"
    first, space, rest = name.partition(" ")
    return f"at {first}", f"{space}{rest}\n```click [{node.id}]```"


def _common(one: list[int], other: list[int]) -> list[int]:
    """What both begin with."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return one[:same]
