"""What a cache still knows of a message that was dropped or replaced.

    python -m agentkv_lab.edited --model smollm2 --text wikitext-2-test.txt

tells a chat model a code in the first of several messages, with text after it, and then asks for
the code. Each row is one conversation under one treatment: the message stays; it is dropped from
the cache, while what was read after it stays; it is replaced there by one with another code; or the
conversation is read again without it, or with the other code.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch

from agentkv.cache.cache import Cache
from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.models.load import load_model
from agentkv_tasks.bench.ruler.prompts import sentences_of
from agentkv_tasks.provenance import commit, processor, versions

Treatment = Literal["kept", "dropped", "without", "replaced", "with the other"]
TREATMENTS: tuple[Treatment, ...] = ("kept", "dropped", "without", "replaced", "with the other")
CHARACTERS, FURTHER = 600, 2
"""Text of each message after the first, and their number."""


@dataclass(frozen=True, slots=True)
class EditedRow:
    """One conversation under one treatment."""

    case: int
    treatment: Treatment
    nll: float
    """Negative log-likelihood of the first message's code, in nats."""
    nll_other: float
    """The same of the code that replaces it."""
    tokens_read: int
    """Tokens that the treatment read, the question not counted."""


def rows(
    model: Any, template: MessageTemplate, filler: Sequence[str], cases: int
) -> Iterator[EditedRow]:
    """Measure a number of conversations over parts of a text."""
    for case in range(cases):
        draw = random.Random(case)
        code, other = (f"{draw.randrange(1000, 10000)}" for _ in range(2))
        yield from _rows_of(model, template, case, code, other, _fillers(draw, filler))


def _fillers(draw: random.Random, filler: Sequence[str]) -> list[str]:
    texts = []
    for _ in range(FURTHER):
        at, text = draw.randrange(len(filler) // 2), ""
        while len(text) < CHARACTERS:
            text += f"{filler[at]} "
            at += 1
        texts.append(text)
    return texts


def _rows_of(
    model: Any, template: MessageTemplate, case: int, code: str, other: str, fillers: list[str]
) -> Iterator[EditedRow]:
    def chat(known: str | None) -> Chat:
        first = [] if known is None else _exchange(f"The code of the safe is {known}. Remember it.")
        rest = [each for text in fillers for each in _exchange(f"Here is a text. {text}")]
        question = {
            "role": "user",
            "content": "What is the code of the safe? Answer with a number.",
        }
        return Chat([*first, *rest, question], prefix="The code of the safe is ")

    told, changed = _pieces(template, chat(code)), _pieces(template, chat(other))
    without = _pieces(template, chat(None))
    # a template may begin every conversation with instructions of its own
    span = _first_message(told, without)
    question, lead = told[-2], told[-1]
    for treatment in TREATMENTS:
        base = {"without": without, "with the other": changed}.get(treatment, told)
        read = [id for piece in base[:-2] for id in piece]
        cache = Cache.for_model(model, policy="full")
        cache.feed(model, torch.tensor([read]))
        num_read = len(read)
        if treatment == "dropped":
            cache.drop(span)
            num_read = 0
        elif treatment == "replaced":
            new = [id for piece in changed[:-2] for id in piece]
            ids = new[span.start : span.stop + len(new) - len(read)]
            cache.replace(model, span, ids)
            num_read = len(ids)
        snapshot = cache.snapshot()
        before = [*question, *lead]
        nll = _nll(model, template, cache, before, code)
        cache.restore(snapshot)
        yield EditedRow(case, treatment, nll, _nll(model, template, cache, before, other), num_read)


def _exchange(text: str) -> list[Any]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "Noted."}]


def _pieces(template: MessageTemplate, chat: Chat) -> list[list[int]]:
    first, rest = template.opening(chat)
    pieces = template.by_message([*first, *rest], chat)
    if pieces is None:
        raise ValueError("the chat template does not render one message after the other")
    return pieces


def _first_message(told: list[list[int]], without: list[list[int]]) -> range:
    """Return where the first exchange stands."""
    lead = 0
    while told[0][lead] == without[0][lead]:
        lead += 1
    # the beginning of a user's message is common to both
    shared = [id for piece in without for id in piece]
    whole = [id for piece in told for id in piece]
    num_gone = len(whole) - len(shared)
    assert whole[lead + num_gone :] == shared[lead:], "more than a message differs"
    return range(lead, lead + num_gone)


@torch.no_grad()
def _nll(
    model: Any, template: MessageTemplate, cache: Cache, before: list[int], answer: str
) -> float:
    ids = template.encode_prompt(answer, begins=False)
    logits = model(torch.tensor([[*before, *ids]]), past_key_values=cache).logits[0]
    losses = logits[len(before) - 1 : -1].log_softmax(-1)
    return -float(losses[torch.arange(len(ids)), torch.tensor(ids)].sum())


def main() -> None:
    """Measure, print a table and write rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    local = load_model(options.model)
    template = MessageTemplate(local.source_tokenizer, texts=local.template.texts)
    filler, found = sentences_of(options.text), []
    made = {"commit": commit(), "processor": processor(), "versions": versions()}
    lines = [json.dumps({"model": options.model, "text": options.text.name, **made})]
    for row in rows(local.model, template, filler, options.cases):
        found.append(row)
        lines.append(json.dumps(asdict(row)))
        print(lines[-1], flush=True)
    for treatment in TREATMENTS:
        own = [row for row in found if row.treatment == treatment]
        means = (fmean(row.nll for row in own), fmean(row.nll_other for row in own))
        read = fmean(row.tokens_read for row in own)
        print(f"{treatment:15} {means[0]:6.2f} {means[1]:6.2f} {read:8.1f}")
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
