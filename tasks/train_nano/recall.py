"""Recall: one long page of lines, and what some of them said, at any distance."""

import random
from collections.abc import Iterable

from agentkv.dialog.prompt import PlainTemplate
from agentkv_env.page import Box, Node, Page
from train_nano.drills import Drills
from train_nano.episode import Episode, Row, Turn, encode

_NOWHERE = Box(0, 0, 0, 0)
_ASKED = ("What is the {0} of {1}?", "Tell me the {0} of {1}.", "Which {0} has {1}?", "{0} of {1}?")
_KEYS = ("code", "number", "price", "year", "room", "phone", "weight", "key", "answer", "password")


Fact = tuple[str, str, str]
"""What is said, of what, and what it is."""


def needle(drills: Drills, num_tokens: int, template: PlainTemplate) -> Row:
    """A question, a page of about `num_tokens` tokens of which one line answers it, the answer.

    Then, for a long page gives little to learn from otherwise, up to a dozen more about its other
    lines of the kind. There mostly are some, so that the name has to be looked at.
    """
    rng = drills.rng
    drills.forget()
    num_facts = 1 if rng.random() < 0.15 else rng.randint(2, 13)
    keys = (rng.choice(_KEYS),) if rng.random() < 0.5 else _KEYS
    facts = [(rng.choice(keys), drills.thing(), code(rng)) for _ in range(num_facts)]
    lines = filler(drills, max(0, num_tokens - 24 * len(facts)), template)
    for key, name, value in facts:
        lines.insert(rng.randint(0, len(lines)), f"{key} of {name} | {value}")
    question, *more = ((_question(rng, fact), _answer(fact)) for fact in facts)
    turn = Turn(page_of(lines, drills), question[1])
    return _asking(encode(template, Episode(question[0], (turn,), "needle")), more, template)


def recalling(drills: Drills, num_facts: int, template: PlainTemplate) -> Row:
    """A row of one page of `num_facts` facts and a dozen questions about them, each answered."""
    rng = drills.rng
    drills.forget()
    facts = [(drills.thing(), rng.choice(_KEYS), drills.figure()) for _ in range(num_facts)]
    lines = [f"{name} {key} | {value}" for name, key, value in facts]
    if rng.random() < 0.5:
        lines = [line for one in lines for line in (one, *filler(drills, 12, template))]
    first = encode(template, Episode("", (Turn(page_of(lines, drills), ""),)))
    ids = first.ids[:-2]  # up to where a reply begins
    questions = [
        (f"{name} {key}?", f"from {name} {key} | {value}\n```stop [{value}]```")
        for name, key, value in rng.choices(facts, k=12)
    ]
    return _asking(Row(ids, [0.0] * len(ids), list(range(len(ids)))), questions, template)


def _question(rng: random.Random, fact: Fact) -> str:
    key, name, _ = fact
    return rng.choice(_ASKED).format(key, name)


def _answer(fact: Fact) -> str:
    key, name, value = fact
    return f"from {key} of {name} | {value}\n```stop [{value}]```"


def _asking(row: Row, questions: Iterable[tuple[str, str]], template: PlainTemplate) -> Row:
    """`row`, then `questions` and their answers, which count."""
    ids, weights = list(row.ids), list(row.weights)
    turn = template.turn("")
    for question, answer in questions:
        asked = [turn[0], *template.encode(question), turn[-1]]
        said = template.reply(answer)
        ids += asked + said
        weights += [0.0] * len(asked) + [1.0] * len(said)
    return Row(ids, weights, list(range(len(ids))))


def code(rng: random.Random) -> str:
    """A value that nothing but reading it can tell."""
    letters = "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(rng.randint(0, 3)))
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(2, 6)))
    return f"{letters}-{digits}" if letters else digits


def filler(drills: Drills, num_tokens: int, template: PlainTemplate) -> list[str]:
    """Lines of about `num_tokens` tokens that say nothing."""
    lines: list[str] = []
    seen = 0
    while seen < num_tokens:
        drills.forget()
        step = drills.step()
        line = " ".join(drills.thing() for _ in range(drills.rng.randint(1, 3)))
        lines += [line, f"{step.node.role} {step.node.name}"]
        seen += template.count(line) + 6
    return lines


def page_of(lines: list[str], drills: Drills) -> Page:
    """A page that says `lines`."""
    nodes = tuple(Node("text", "text", line, _NOWHERE) for line in lines)
    return Page("http://wiki.localhost/facts", drills.rng.choice(("Facts", "Notes", "List")), nodes)
