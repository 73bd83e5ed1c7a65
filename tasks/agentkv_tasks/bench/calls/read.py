"""Conversations as token ids, and one of them read under a policy with its answers given."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agentkv.cache.cache import Cache
from agentkv.dialog.prompt import Template
from agentkv_tasks.bench.calls.conversations import Conversation

_INTRO = (
    "You can call the functions below. Answer each request with a list of calls, such as "
    "[first(name='a'), second(count=2)], and write nothing else."
)


@dataclass(frozen=True, slots=True)
class EncodedTurn:
    """A turn with its ids."""

    asks: tuple[int, ...]
    """The request, up to where the reply begins."""
    answer: tuple[int, ...]
    """The calls, and the id that ends a reply, which is not fed."""
    closes: tuple[int, ...]
    """What is fed after the calls."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation with its ids."""

    name: str
    opening: tuple[int, ...]
    """Instructions and functions."""
    turns: tuple[EncodedTurn, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole conversation."""
        ends = sum(len(each.asks) + len(each.answer) - 1 + len(each.closes) for each in self.turns)
        return len(self.opening) + ends

    @property
    def digest(self) -> str:
        """SHA-256 of all ids in decimal."""
        parts = [self.opening, *(part for each in self.turns for part in (each.asks, each.answer))]
        text = "\n".join(",".join(map(str, part)) for part in parts)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Read:
    """One conversation under one policy."""

    nll: tuple[float, ...]
    """Negative log-likelihood of each token of the answers, in nats."""
    hits: tuple[bool, ...]
    """Whether the token was the likeliest one."""
    exact: tuple[bool, ...]
    """Per turn, whether all tokens of its answer were."""
    hot_bytes: tuple[int, ...]
    """After each token of the answers, as the next two."""
    cold_bytes: tuple[int, ...]
    """With the digests."""
    peak_bytes: int
    num_looks: int
    num_fed: int
    """Tokens of requests and answers."""


def encoded(conversation: Conversation, template: Template) -> Encoded:
    """Return a conversation as the prompt of a model."""
    separator = tuple(template.separator)
    end = separator[0] if separator and separator[0] in template.end_ids else None
    end = min(template.end_ids) if end is None else end
    return Encoded(
        name=conversation.name,
        opening=(
            *template.opening(_INTRO),
            *template.encode(f"{conversation.functions}\n\n"),
        ),
        turns=tuple(
            EncodedTurn(
                asks=(*template.encode(turn.asks), *template.turn("")),
                answer=(*template.encode(turn.answer), end),
                closes=separator,
            )
            for turn in conversation.turns
        ),
    )


@torch.inference_mode()
def read(model: Any, cache: Cache, conversation: Encoded) -> Read:
    """Read a conversation; the model is given each token of the answers after its guess.

    Args:
        cache: an empty cache; mutated.
    """

    def feed(ids: Sequence[int]) -> torch.Tensor:
        return cache.feed(model, torch.tensor([list(ids)], device=model.device))

    cache.label("goal", len(conversation.opening))
    cache.may_look_back = False  # the next token is known already
    feed(conversation.opening)
    cache.may_look_back = True
    nll, hits, exact, hot, cold = [], [], [], [], []
    looks, num_fed, unread = cache.num_looks, 0, tuple[int, ...]()
    for number, turn in enumerate(conversation.turns):
        ids = (*unread, *turn.asks)
        cache.label(f"goal {number + 1}", len(ids))
        cache.label(f"reply {number}")
        for wanted in turn.answer:
            logits = feed(ids)[0].double()
            num_fed += len(ids)
            nll.append(-float(logits.log_softmax(dim=-1)[wanted]))
            hits.append(int(logits.argmax()) == wanted)
            hot.append(cache.nbytes)
            cold.append(cache.cold_nbytes + cache.index_nbytes)
            ids = (wanted,)
        exact.append(all(hits[-len(turn.answer) :]))
        unread = turn.closes
    return Read(
        nll=tuple(nll),
        hits=tuple(hits),
        exact=tuple(exact),
        hot_bytes=tuple(hot),
        cold_bytes=tuple(cold),
        peak_bytes=cache.peak_nbytes,
        num_looks=cache.num_looks - looks,
        num_fed=num_fed,
    )
