"""Rows of one long page and several questions about its lines, at any distance."""

import random
from collections.abc import Iterable

from agentkv.dialog.prompt import PlainTemplate
from agentkv_env.page import Box, Node, Page
from train_nano.drills import Drills
from train_nano.episode import RecordedEpisode, RecordedTurn, TrainingRow, encode

_NOWHERE = Box(0, 0, 0, 0)
_ASKED = ("What is the {0} of {1}?", "Tell me the {0} of {1}.", "Which {0} has {1}?", "{0} of {1}?")
_ASKED_BELOW = (
    "Answer the question at the end of the page.",
    "The last line of the page is a question. Answer it.",
    "Read the page and answer its last line.",
)
_KEYS = ("code", "number", "price", "year", "room", "phone", "weight", "key", "answer", "password")


Fact = tuple[str, str, str]
"""Key, subject and value of a fact."""


def needle_row(drills: Drills, num_tokens: int, template: PlainTemplate) -> TrainingRow:
    """Build a needle-in-a-haystack row: a question, a page of about `num_tokens` tokens, an answer.

    In a third of the rows the question is the last line of the page instead of the goal.

    Most pages hold up to a dozen more facts, so the answer depends on the subject and not only on
    the key. A question about each of them follows, because a single answer is a weak training
    signal for a long page.
    """
    rng = drills.rng
    drills.reset_names()
    num_facts = 1 if rng.random() < 0.15 else rng.randint(2, 13)
    keys = (rng.choice(_KEYS),) if rng.random() < 0.5 else _KEYS
    facts = [(rng.choice(keys), drills.name(), random_code(rng)) for _ in range(num_facts)]
    lines = filler(drills, max(0, num_tokens - 24 * len(facts)), template)
    for key, name, value in facts:
        lines.insert(rng.randint(0, len(lines)), f"{key} of {name} | {value}")
    question, *more = ((_draw_question(rng, fact), _answer(fact)) for fact in facts)
    goal = question[0]
    if rng.random() < 1 / 3:
        lines.append(goal)
        goal = rng.choice(_ASKED_BELOW)
    turn = RecordedTurn(facts_page(lines, drills), question[1])
    return _append_questions(
        encode(template, RecordedEpisode(goal, (turn,), "needle")), more, template
    )


def recall_row(drills: Drills, num_facts: int, template: PlainTemplate) -> TrainingRow:
    """Build a row of one page with `num_facts` facts and a dozen questions with answers."""
    rng = drills.rng
    drills.reset_names()
    facts = [(drills.name(), rng.choice(_KEYS), drills.value()) for _ in range(num_facts)]
    lines = [f"{name} {key} | {value}" for name, key, value in facts]
    if rng.random() < 0.5:
        lines = [line for one in lines for line in (one, *filler(drills, 12, template))]
    first = encode(template, RecordedEpisode("", (RecordedTurn(facts_page(lines, drills), ""),)))
    ids = first.ids[:-2]  # drop the empty reply
    questions = [
        (f"{name} {key}?", f"from {name} {key} | {value}\n```stop [{value}]```")
        for name, key, value in rng.choices(facts, k=12)
    ]
    return _append_questions(
        TrainingRow(ids, [0.0] * len(ids), list(range(len(ids)))), questions, template
    )


def _draw_question(rng: random.Random, fact: Fact) -> str:
    key, name, _ = fact
    return rng.choice(_ASKED).format(key, name)


def _answer(fact: Fact) -> str:
    key, name, value = fact
    return f"from {key} of {name} | {value}\n```stop [{value}]```"


def _append_questions(
    row: TrainingRow, questions: Iterable[tuple[str, str]], template: PlainTemplate
) -> TrainingRow:
    """Append `questions` and their answers to `row`; only the answers have weight."""
    ids, weights = list(row.ids), list(row.weights)
    turn = template.turn("")
    for question, answer in questions:
        prompt = [turn[0], *template.encode(question), turn[-1]]
        reply = template.reply(answer)
        ids += prompt + reply
        weights += [0.0] * len(prompt) + [1.0] * len(reply)
    return TrainingRow(ids, weights, list(range(len(ids))))


def random_code(rng: random.Random) -> str:
    """Draw a code that cannot be guessed."""
    letters = "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(rng.randint(0, 3)))
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(2, 6)))
    return f"{letters}-{digits}" if letters else digits


def filler(drills: Drills, num_tokens: int, template: PlainTemplate) -> list[str]:
    """Generate meaningless lines of about `num_tokens` tokens in total."""
    lines: list[str] = []
    total = 0
    while total < num_tokens:
        drills.reset_names()
        step = drills.step()
        line = " ".join(drills.name() for _ in range(drills.rng.randint(1, 3)))
        lines += [line, f"{step.node.role} {step.node.name}"]
        total += template.count(line) + 6
    return lines


def facts_page(lines: list[str], drills: Drills) -> Page:
    """Build a page of text nodes from `lines`."""
    nodes = tuple(Node("text", "text", line, _NOWHERE) for line in lines)
    return Page("http://wiki.localhost/facts", drills.rng.choice(("Facts", "Notes", "List")), nodes)
