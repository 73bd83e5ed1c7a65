"""Quoting: one page, many answers. The densest drill for finding a number and copying words.

The first words of each answer are given, for nothing says which element is meant; the rest counts.
"""

import random

from agentkv.models.scripted import label
from agentkv.prompt import PlainTemplate
from agentkv_env.page import Node, Page
from agentkv_env.serialize import neutral
from nano.episode import Row, encode_page

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
    for _ in range(count if elements else 0):
        fields = [node for node in elements if node.role in _TYPED]
        node = rng.choice(fields if fields and rng.random() < 0.3 else elements)
        before, after = _reply(rng, node, goal, page)
        given = template.encode(before)
        rest = template.reply(before + after)[len(given) :]
        ids += [act, *given, *rest]
        weights += [0.0] * (1 + len(given)) + [weight] * len(rest)
    return Row(ids, weights, list(range(len(ids))))


def _reply(rng: random.Random, node: Node, goal: str, page: Page) -> tuple[str, str]:
    """What is given of a reply, and what is to be said."""
    name = label(node)
    if node.role in _TYPED:
        source = goal if rng.random() < 0.5 else neutral(rng.choice(page.nodes).name)
        words = source.split()
        start = rng.randrange(max(1, len(words) - 1))
        phrase = words[start : start + rng.randint(2, 6)]
        if len(phrase) > 1:
            said = f"{name}\n```type [{node.id}] ["
            return said + phrase[0], f" {' '.join(phrase[1:])}] [{rng.randint(0, 1)}]```"
    role, _, rest = name.partition(" ")
    first, space, rest = rest.partition(" ")
    return f"{role} {first}", f"{space}{rest}\n```click [{node.id}]```"
