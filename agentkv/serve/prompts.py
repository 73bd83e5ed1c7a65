"""The ids that a request has to read, and the memory that its cache will need."""

import bisect

from agentkv.cache.cache import Cache
from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.dialog.rendering import TemplateError
from agentkv.models.model import ContextLimit
from agentkv.plan import CachePlan, plan_cache
from agentkv.serve.job import Ask, MemoryLimit
from agentkv.serve.session import CacheSettings, Place
from agentkv.serve.sessions import Sessions

Stage = tuple[list[int], Place | None]
"""Ids that are read in one go, and the place after them, of which a snapshot is kept."""

_MOST_CHARACTERS = 32
"""Characters per token beyond which a text is refused unread (our choice: text has about four)."""


class Prompts:
    """Turns prompts into ids, and refuses those that fit neither the model nor the memory.

    Args:
        template: the model's chat template.
        sessions: the sessions, for their memory and the settings of caches.
        max_positions: the model's context length in tokens; None if unlimited.
        most_tokens: maximum number of tokens in a reply.
    """

    def __init__(
        self,
        template: MessageTemplate,
        sessions: Sessions,
        *,
        max_positions: int | None,
        most_tokens: int,
    ) -> None:
        self._template, self._sessions = template, sessions
        self._max_positions, self._most_tokens = max_positions, most_tokens
        self._empty: dict[CacheSettings, Cache] = {}
        """Empty caches, for plans."""

    def require_readable(self, ask: Ask) -> None:
        """Refuse a prompt that is far longer than what the model can read, before it is encoded.

        Raises:
            ContextLimit: it is.
        """
        limit, prompt = self._max_positions, ask.prompt
        texts: list[str | None]
        if isinstance(prompt, str):
            texts = [prompt]
        else:
            texts = [prompt.prefix, *(message["content"] for message in prompt.messages)]
        num_characters = sum(len(text or "") for text in texts)
        if limit is not None and num_characters > limit * _MOST_CHARACTERS:
            raise ContextLimit(
                f"the model has {limit} positions, and this conversation has {num_characters} "
                "characters"
            )

    @staticmethod
    def may_begin_with_space(ask: Ask) -> bool:
        """True if a space at the beginning of the reply counts: the reply continues a text, or its
        grammar tells each character."""
        is_chat = isinstance(ask.prompt, Chat) and ask.prompt.prefix is None
        return not is_chat or ask.grammar is not None

    def within_memory(self, settings: CacheSettings, num_prompt: int, max_tokens: int) -> int:
        """Return how many of `max_tokens` fit into the memory after a prompt.

        Raises:
            MemoryLimit: the prompt itself does not.
        """
        memory = self._sessions.memory
        least = self.bound(settings, num_prompt)
        if least > memory:
            raise MemoryLimit(
                f"the cache of this conversation would take {least} bytes and all sessions "
                f"together have {memory}; send less, or let the server have more memory or a "
                "smaller budget"
            )
        if self.bound(settings, num_prompt + max_tokens) <= memory:
            return max_tokens
        counts = range(max_tokens + 1)
        return (
            bisect.bisect_right(counts, memory, key=lambda n: self.bound(settings, num_prompt + n))
            - 1
        )

    def reply_tokens(self, wanted: int | None, num_prompt: int) -> int:
        """Return the maximum length of a reply. Raises ContextLimit if there are too few positions
        for what the client wants, or for any reply."""
        granted = self._most_tokens
        max_tokens = granted if wanted is None else min(granted, wanted)
        limit = self._max_positions
        if limit is None:
            return max_tokens
        least = 1 if wanted is None else max_tokens
        if limit - num_prompt < least:
            raise ContextLimit(
                f"the model has {limit} positions; this conversation takes {num_prompt}, and the "
                f"reply at least {least}"
            )
        return min(max_tokens, limit - num_prompt)

    def new_ids(self, ask: Ask, place: Place | None) -> tuple[list[Stage], Place | None]:
        """Return the ids to read from a place on, in stages, and the place. Any thread may call it.

        The place becomes None if the template cannot go on from it, or nothing would be read.

        Raises:
            TemplateError: there is nothing to read, or the template refuses the messages.
        """
        found: tuple[list[Stage], Place | None]
        if isinstance(ask.prompt, str):
            found = self._new_ids_of_text(ask.prompt, ask.prompt_ids, place)
        else:
            found = self._new_ids_of_chat(ask.prompt, place, at_once=ask.grammar is not None)
        if not found[0][-1][0]:
            raise TemplateError("the prompt is empty; the model needs something to read")
        return found

    def _new_ids_of_text(
        self, prompt: str, prompt_ids: tuple[int, ...] | None, place: Place | None
    ) -> tuple[list[Stage], Place | None]:
        if place is not None:
            ids = self._template.encode_prompt(prompt[place.length :], begins=False)
            if place.unread or ids:
                return [([*place.unread, *ids], None)], place
        if prompt_ids is not None:
            return [(list(prompt_ids), None)], None
        return [(self._template.encode_prompt(prompt, begins=True), None)], None

    def _new_ids_of_chat(
        self, chat: Chat, place: Place | None, *, at_once: bool
    ) -> tuple[list[Stage], Place | None]:
        if place is not None and place.num_read:
            try:
                ids = self._template.following(chat, place.num_read, at_once=at_once)
                return [([*place.unread, *ids], None)], place
            except TemplateError:
                place = None  # the opening says what is wrong, or has no trouble
        first, rest = self._template.opening(chat, at_once=at_once)
        if not first:
            return [(rest, None)], None
        after_first = Place(1 + chat.num_leading, len(first))
        if place is not None and place.length == after_first.length:
            return [(rest, None)], place
        return [(first, after_first), (rest, None)], None

    def bound(self, settings: CacheSettings, num_tokens: int) -> int:
        """Return the most bytes that a cache with these settings has at rest after so many tokens,
        its cold tier included."""
        plan = self.plan(settings, num_tokens)
        return plan.resting_nbytes + plan.cold_nbytes

    def plan(self, settings: CacheSettings, num_tokens: int) -> CachePlan:
        """Return what a cache with these settings takes after so many tokens."""
        cache = self._empty.get(settings)
        if cache is None:
            cache = self._empty[settings] = self._sessions.new_cache(settings)
        return plan_cache(
            cache.policy, settings.budget, cache.geometry, num_tokens=num_tokens, chunk=cache.chunk
        )
