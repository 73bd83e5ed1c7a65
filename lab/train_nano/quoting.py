"""Quoting rows: one page and many replies, for finding an element's id and copying words.

The first words of each reply have no weight, because they select the element; the rest has.
"""

import random

from agentkv.dialog.prompt import PlainTemplate
from agentkv.dialog.reply import label
from agentkv_env.page import Node, Page
from agentkv_env.serialize import neutralize
from train_nano.episode import TrainingRow, encode_page

_TYPED = frozenset({"textbox", "searchbox"})


def quote_row(
    rng: random.Random, template: PlainTemplate, goal: str, page: Page, *, count: int, weight: float
) -> TrainingRow:
    """Build a row of `goal`, `page` and `count` replies that quote the page or the goal.

    Args:
        weight: loss weight of the reply tokens after the first words.
    """
    opening = template.opening(goal)
    page_ids = encode_page(template, page)
    act = page_ids[-1]
    ids = opening + page_ids[:-1]
    weights = [0.0] * len(ids)
    elements = [node for node in page.nodes if node.id is not None and node.name]
    facts = [neutralize(node.name) for node in page.nodes if node.name.count(" | ") == 1]
    for _ in range(count if elements else 0):
        fields = [node for node in elements if node.role in _TYPED]
        node = rng.choice(fields if fields and rng.random() < 0.3 else elements)
        if facts and rng.random() < 0.4:
            before, after = _fact_reply(rng.choice(facts))
        else:
            before, after = _draw_reply(rng, node, goal, page)
        reply = template.reply(before + after)
        prefix = _common_prefix(template.reply(before)[:-1], reply)
        rest = reply[len(prefix) :]
        ids += [act, *prefix, *rest]
        weights += [0.0] * (1 + len(prefix)) + [weight] * len(rest)
    return TrainingRow(ids, weights, list(range(len(ids))))


def _fact_reply(line: str) -> tuple[str, str]:
    """Return the start and the rest of a reply that quotes a fact and answers with its value."""
    key, _, value = line.partition(" | ")
    first, space, rest = key.partition(" ")
    return f"from {first}", f"{space}{rest} | {value}\n```stop [{value}]```"


def _draw_reply(rng: random.Random, node: Node, goal: str, page: Page) -> tuple[str, str]:
    """Draw a reply that clicks `node` or types a quotation into it; return its start and rest."""
    name = label(node)
    if node.role in _TYPED:
        source = goal if rng.random() < 0.5 else neutralize(rng.choice(page.nodes).name)
        words = source.split()
        start = rng.randrange(max(1, len(words) - 1))
        phrase = words[start : start + rng.randint(2, 6)]
        if len(phrase) > 1:
            start_text = f"at {name}\n```type [{node.id}] [{phrase[0]}"
            return start_text, f" {' '.join(phrase[1:])}] [{rng.randint(0, 1)}]```"
    first, space, rest = name.partition(" ")
    return f"at {first}", f"{space}{rest}\n```click [{node.id}]```"


def _common_prefix(one: list[int], other: list[int]) -> list[int]:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]
