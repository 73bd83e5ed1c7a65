"""Ask the questions of a case under one policy, with its context read and compressed before."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from agentkv.cache.cache import Cache
from agentkv.dialog.prompt import Template
from agentkv_tasks.bench.ruler.prompts import AskedQuestion, Prompt


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a cache."""

    hot: int
    cold: int
    index: int

    @property
    def all(self) -> int:
        """Bytes of all parts."""
        return self.hot + self.cold + self.index


@dataclass(slots=True)
class Asked:
    """The replies to a case in one mode."""

    replies: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    sizes: list[Sizes] = field(default_factory=list)
    """After each token that was fed since the context."""
    num_looks: int = 0
    num_fed: int = 0
    """Tokens of questions and replies that the cache was fed."""
    num_sampled: int = 0
    """Tokens sampled, those that end a reply included."""
    peak_bytes: int = 0
    read_seconds: float = 0.0
    """Time of reading the context."""
    reply_seconds: float = 0.0
    """Time of reading the questions and writing the replies."""


class Reader:
    """Reads the context of one case into an empty cache, and asks its questions.

    The spans of the cache have an agent's labels: `goal`, `page 0` for the context, `goal 1` for
    the first question, `reply 0`, and so on.

    Args:
        cache: empty; mutated.
    """

    def __init__(self, model: Any, template: Template, cache: Cache, prompt: Prompt) -> None:
        self._model, self._template, self._cache, self._prompt = model, template, cache, prompt
        self._unread: list[int] = []
        """Ids of the reply before that the cache has not read."""
        began = perf_counter()
        cache.label("goal", len(prompt.opening))
        cache.label("page 0", len(prompt.context))
        cache.may_look_back = False  # the next token is known already
        self._feed([*prompt.opening, *prompt.context])
        cache.may_look_back = True
        self._read = cache.snapshot()
        self._seconds = perf_counter() - began

    def ask(self, *, in_turns: bool) -> Asked:
        """Ask all questions, each after the bare context or, `in_turns`, after those before it."""
        asked = Asked(read_seconds=self._seconds)
        began = perf_counter()
        for number, question in enumerate(self._prompt.questions):
            if not in_turns or number == 0:
                self._cache.restore(self._read)
                self._unread = []
            reply = self._reply(number if in_turns else 0, question, asked)
            asked.replies.append(reply)
            asked.scores.append(question.question.score(reply))
        asked.peak_bytes = self._cache.peak_nbytes
        asked.reply_seconds = perf_counter() - began
        return asked

    def _reply(self, turn: int, question: AskedQuestion, asked: Asked) -> str:
        """Ask one question; return the greedy reply."""
        cache, written = self._cache, list[int]()
        looks, ids = cache.num_looks, [*self._unread, *question.ids]
        cache.label(f"goal {turn + 1}", len(ids))
        cache.label(f"reply {turn}")
        while True:
            logits = self._feed(ids)
            asked.num_fed += len(ids)
            asked.sizes.append(Sizes(cache.nbytes, cache.cold_nbytes, cache.index_nbytes))
            chosen = int(logits[0].argmax())
            asked.num_sampled += 1
            if chosen in self._template.end_ids:
                self._unread = [*self._template.separator]
                break
            written.append(chosen)
            ids = [chosen]
            if len(written) == question.num_reply:
                self._unread = [chosen, *self._template.separator]
                break
        asked.num_looks += cache.num_looks - looks
        return self._template.decode(written)

    @torch.inference_mode()
    def _feed(self, ids: Sequence[int]) -> torch.Tensor:
        return self._cache.feed(self._model, torch.tensor([list(ids)], device=self._model.device))
