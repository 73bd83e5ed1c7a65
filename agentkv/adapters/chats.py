"""Chats with a local model: lists of messages in, replies out, and caches that go on if they fit.

A caller sends the whole list each time. What it has in common with a chat that was read before is
not read again, if the list only continues that chat; else it is read into an empty cache.
"""

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Literal

import torch

from agentkv.cache.cache import Cache
from agentkv.cache.hf.forward import COMPILED, decoding
from agentkv.dialog.prompt import PlainTemplate, Template, UntrustedTextTokenizer
from agentkv.models.batch import Batch
from agentkv.models.find import ModelError
from agentkv.models.generation import Generation, context_limit_error
from agentkv.models.local import LocalModel
from agentkv.models.rules import FreeRule
from agentkv.models.sampling import Sampler

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: Role
    text: str
    ids: tuple[int, ...] | None = None
    """The ids that the model wrote for a reply; None encodes `text` anew."""
    name: str = ""
    """Name of the tool that a tool message answers for."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a reply is sampled, and where it ends."""

    max_tokens: int
    temperature: float = 0.0
    """0 is greedy."""
    seed: int = 0
    stops: tuple[str, ...] = ()
    """Texts before which the reply ends."""


@dataclass(frozen=True, slots=True)
class Written:
    """A reply."""

    text: str
    ids: tuple[int, ...]
    """What the model wrote, without its end token."""
    is_complete: bool
    """False if the maximum of tokens ended it."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Tokens of the prompt that were not read again."""
    seconds: float


class Chats:
    """The chats of one model; replies that are written at the same time share its forwards.

    All threads may call `reply`. A thread of its own reads and writes; `close` ends it.

    Args:
        local: the model.
        tokenizer: its tokenizer of transformers, which has the chat template. Models with
            `PlainTemplate` need none: they are given each message as a goal.
        new_cache: returns an empty cache.
        max_chats: chats whose caches are kept, the latest ones.

    Raises:
        ModelError: the tokenizer has no chat template.
    """

    def __init__(
        self, local: LocalModel, tokenizer: Any, new_cache: Callable[[], Cache], *, max_chats: int
    ) -> None:
        self._local, self._new_cache, self._max_chats = local, new_cache, max_chats
        self._renderer = _renderer_of(local, tokenizer)
        self._chats: list[_Chat] = []
        """The chats that nobody writes in, from the oldest."""
        self._jobs: dict[Generation, _Job] = {}
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="agentkv chats", daemon=True)
        self._thread.start()

    def reply(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Future[Written]:
        """Return the future reply to `messages`. Cancelling it ends the reply and its chat.

        The future raises `ContextLimit` if the messages exceed the model's positions, and
        `ValueError` if the chat template refuses them.

        Args:
            messages: the whole chat so far.
            sampling: how to write the reply.
            tools: descriptions of functions, as the chat template takes them.

        Raises:
            RuntimeError: `close` was called.
        """
        if not self._thread.is_alive():
            raise RuntimeError("these chats are closed")
        job = _Job(tuple(messages), sampling, tuple(tools))
        self._queue.put(job)
        return job.future

    def close(self) -> None:
        """Cancel all replies and free the caches."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        batch = Batch(self._local.model)
        while True:
            try:
                job = self._queue.get(block=not self._jobs)
            except Empty:
                self._advance(batch)
                continue
            if job is None:
                break
            try:
                self._begin(job, batch)
            except Exception as error:  # the caller's, whatever a template raises
                if job.future.set_running_or_notify_cancel():
                    job.future.set_exception(error)
        for job in self._jobs.values():
            job.future.cancel()
        self._chats.clear()

    def _begin(self, job: "_Job", batch: Batch) -> None:
        limit = self._local.max_positions
        prompt = self._renderer.render(job.messages, job.tools)
        room = job.sampling.max_tokens if limit is None else limit - len(prompt)
        if room < 1:
            raise context_limit_error(limit or 0, len(prompt), 1)
        job.prompt, job.chat = prompt, self._chat_before(prompt)
        job.num_cached = len(job.chat.ids)
        job.rule = _ChatRule(
            self._local.template,
            max_tokens=min(room, job.sampling.max_tokens),
            stops=job.sampling.stops,
        )
        device = self._local.model.device
        generation = Generation(
            job.chat.cache,
            prompt[job.num_cached :],
            job.rule,
            sampler=Sampler(
                job.sampling.temperature,
                torch.Generator(device=device).manual_seed(job.sampling.seed),
            ),
            deadline=None,
            max_positions=limit,
            is_compiled=decoding(self._local.model) == COMPILED,
        )
        self._jobs[generation] = job
        batch.add(generation)

    def _chat_before(self, prompt: list[int]) -> "_Chat":
        """Return the chat that `prompt` continues, or a new one."""
        fitting = [
            chat
            for chat in self._chats
            if len(chat.ids) < len(prompt) and prompt[: len(chat.ids)] == chat.ids
        ]
        if not fitting:
            return _Chat(self._new_cache())
        chat = max(fitting, key=lambda each: len(each.ids))
        self._chats = [each for each in self._chats if each is not chat]
        return chat

    def _advance(self, batch: Batch) -> None:
        for generation, job in list(self._jobs.items()):
            if job.future.cancelled():
                batch.remove(generation)
                del self._jobs[generation]
        for generation in batch.step() if self._jobs else ():
            self._finish(generation, self._jobs.pop(generation))

    def _finish(self, generation: Generation, job: "_Job") -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        if generation.error is not None:
            job.future.set_exception(generation.error)
            return
        chat, rule = job.chat, job.rule
        assert chat is not None and rule is not None, "the job has begun"
        # The last token that was sampled may not have been read.
        chat.ids = [*job.prompt, *rule.ids][: chat.cache.seen]
        self._chats = [*self._chats, chat][-self._max_chats :]
        job.future.set_result(
            Written(
                text=rule.text,
                ids=tuple(rule.ids),
                is_complete=rule.has_ended,
                num_prompt_tokens=len(job.prompt),
                num_cached_tokens=job.num_cached,
                seconds=time.monotonic() - job.asked_at,
            )
        )


@dataclass(slots=True)
class _Chat:
    cache: Cache
    ids: list[int] = field(default_factory=list)
    """The ids that the cache has read."""


@dataclass(slots=True)
class _Job:
    """A reply that was asked for."""

    messages: tuple[Message, ...]
    sampling: Sampling
    tools: tuple[Mapping[str, Any], ...]
    future: Future[Written] = field(default_factory=Future)
    asked_at: float = field(default_factory=time.monotonic)
    prompt: list[int] = field(default_factory=list)
    num_cached: int = 0
    chat: _Chat | None = None
    rule: "_ChatRule | None" = None


class _ChatRule(FreeRule):
    """A `Rule` that allows every id, until an end token, a stop or the maximum of tokens."""

    def __init__(self, template: Template, *, max_tokens: int, stops: Sequence[str]) -> None:
        super().__init__(template, max_tokens=max_tokens, is_action=False)
        self._stops = [stop for stop in stops if stop]
        self.has_ended = False
        """True if the model ended the reply, or a stop did."""

    @property
    def text(self) -> str:
        """The reply up to the first stop."""
        text = self._template.decode(self.ids)
        ends = [text.find(stop) for stop in self._stops if stop in text]
        return text[: min(ends)] if ends else text

    def accept(self, id: int) -> None:
        """Append `id`, unless it is an end token."""
        num_before = len(self.ids)
        super().accept(id)
        is_end = len(self.ids) == num_before
        # Each id has a byte or more, so the stop ends within as many ids as it has bytes.
        tails = ((stop, self.ids[-len(stop.encode()) - 1 :]) for stop in self._stops)
        if is_end or any(stop in self._template.decode(tail) for stop, tail in tails):
            self.has_ended = self.is_complete = True


class _Renderer:
    """Renders messages with the chat template of a tokenizer.

    The template is given placeholders. Messages are encoded apart from it, without control tokens,
    and the ids of replies are used as they were written.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._source = tokenizer
        self._tokenizer = UntrustedTextTokenizer(tokenizer.backend_tokenizer)
        self._nonce = secrets.token_hex(8)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the ids of a chat, up to where the model begins to write.

        Raises:
            ValueError: the template refuses the messages.
        """
        given = []
        for number, message in enumerate(messages):
            placeholder = f"({self._nonce}-{number})"
            named = {"name": message.name} if message.name else {}
            given.append({"role": message.role, "content": placeholder, **named})
        try:
            text = self._source.apply_chat_template(
                given, tools=list(tools) or None, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program and may raise anything
            reason = " ".join(str(error).split())[:300]
            raise ValueError(f"the chat template refuses these messages: {reason}") from error
        ids: list[int] = []
        for number, part in enumerate(re.split(rf"\({self._nonce}-(\d+)\)", text)):
            if number % 2 == 0:
                ids += self._tokenizer.encode_trusted(part)
            else:
                message = messages[int(part)]
                written = message.ids
                ids += self._tokenizer.encode(message.text) if written is None else written
        return ids


class _PlainRenderer:
    """Renders messages for models with `PlainTemplate`: each one is a goal, without a page."""

    def __init__(self, template: Template) -> None:
        self._template = template

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the ids of a chat, up to where the model begins to write.

        Raises:
            ValueError: there are tools, which such models do not know.
        """
        if tools:
            raise ValueError("this model knows no tools; give an instruction-tuned one")
        template, ids = self._template, list[int]()
        for message in messages:
            if message.role != "assistant":
                ids += template.goal(message.text)
                continue
            ids += template.turn("")
            written = message.ids
            reply = template.reply(message.text)
            ids += reply if written is None else [*written, *template.separator]
        return [*ids, *template.turn("")]


def _renderer_of(local: LocalModel, tokenizer: Any) -> _Renderer | _PlainRenderer:
    if isinstance(local.template, PlainTemplate):
        return _PlainRenderer(local.template)
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(f"{local.name} has no chat template; give an instruction-tuned model")
    return _Renderer(tokenizer)
