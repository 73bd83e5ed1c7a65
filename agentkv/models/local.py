"""A language model in memory, and the conversations in which it reads pages and writes replies."""

import base64
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from agentkv.cache.budget import needs_budget
from agentkv.cache.cache import Cache
from agentkv.cache.hf.forward import COMPILED, decoding
from agentkv.defaults import CHUNK, POLICY
from agentkv.dialog.grammar import Grammar
from agentkv.dialog.prompt import DoesNotThink, EncodedText, Template
from agentkv.dialog.reply import notes_in
from agentkv.dialog.schema.prepared import PreparedSchema, rule_of
from agentkv.models.batch import Batch
from agentkv.models.generation import Generation, context_limit_error
from agentkv.models.held import HeldSpans, token_ends
from agentkv.models.model import BrokenConversation, Cancelled, OutOfMemory, Reply
from agentkv.models.prompts import EpisodePrompt
from agentkv.models.rules import FreeRule, GrammarRule, Rule, TextRule, ThinkingRule
from agentkv.models.sampling import Sampler
from agentkv.models.saved import (
    ConversationFileError,
    SavedConversation,
    load,
    new_cache_name,
    save,
)
from agentkv.models.stream import StreamTurn, TokenStream, common_start
from agentkv.policies.registry import policy as named_policy
from agentkv.progress import Listener
from agentkv.settings import ActingSettings, ModelSettings, PageSettings
from agentkv_env.page import Page
from agentkv_env.serialize import serialize
from agentkv_env.timing import Stopwatch, timed


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A language model with its tokenizer, prompt template and grammar.

    All agents made from it share the weights. `with_cache` returns the `Model` that acts.
    """

    name: str
    """Name in result rows."""
    model: Any = field(repr=False)
    """The transformers model, in evaluation mode and attached to our attention."""
    tokenizer: Tokenizer = field(repr=False)
    """The model's fast tokenizer."""
    source_tokenizer: Any = field(repr=False)
    """The tokenizer of transformers that it belongs to."""
    template: Template = field(repr=False)
    """The prompt format."""
    grammar: Grammar = field(repr=False)
    """Token masks for constrained decoding."""
    max_positions: int | None
    """Positions of the model; None if it names no number."""
    cache_dtype: str
    """Dtype in which caches store dense entries unless `with_cache` is given another."""
    budget: str | None = None
    """Budget of policies that need one, unless `with_cache` is given another; None: as in
    `agentkv.Cache.for_model`."""
    chunk: int = CHUNK
    """Tokens of an input that are read at once, unless `with_cache` is given another number."""
    names_elements: bool = False
    """True if its adapter learned to name, in the line before an action, what is acted on.
    Constrained decoding then admits only such lines, but for the stop: see `reply_grammar`."""

    def warm_up(self, cache: Cache) -> None:
        """Feed two tokens to an empty `cache`, which is of no further use.

        Reading a page and decoding a token need kernels that are compiled when they are first used.
        On a CPU this takes minutes after an installation, and is over at once in later processes.
        """
        for _ in range(2):
            cache.feed(self.model, torch.zeros((1, 1), dtype=torch.int64, device=self.model.device))

    def with_cache(
        self,
        policy: Any = POLICY,
        settings: ActingSettings | None = None,
        *,
        cold_folder: str | os.PathLike[str] | None = None,
        cold_limit: int | str | None = None,
        **overrides: Any,
    ) -> "ActingModel":
        """Return this model with a cache under `policy`, ready for episodes.

        Args:
            policy: as in `agentkv.Cache.for_model`.
            settings: what the model reads and writes; None: the defaults. Those of loading a model
                do not matter here. The model has its own defaults of `budget` and `chunk`, and
                those of nano were tuned for it.
            overrides: fields of `ActingSettings`, which take the place of those in `settings`, and
                of `PageSettings`, such as `last_pages`. None stands for the model's own `budget`,
                `chunk` and `cache_dtype`.
            cold_folder, cold_limit: as in `agentkv.Cache.for_model`.

        Raises:
            SettingsError: a ValueError; an unknown setting, or a value that it cannot have.
            ValueError: an unknown policy, a budget that the policy cannot keep, `last_pages` with
                observations that refer to earlier pages or with recurrent states that hold them, or
                a model that cannot think.
        """
        about_pages = PageSettings.model_fields.keys() & overrides.keys()
        pages = PageSettings.read(**{name: overrides.pop(name) for name in about_pages})
        given = ActingSettings.merged(settings, overrides)
        unset = {"budget", "chunk"} - given.model_fields_set
        acting = given.model_copy(update={name: getattr(self, name) for name in unset})
        if pages.last_pages is not None and acting.observations == "changes":
            raise ValueError(
                "observations='changes' shows what differs from earlier pages, and "
                f"last_pages={pages.last_pages} forgets them; give one of the two"
            )
        if acting.thinking and pages.notes_only:
            raise ValueError("notes_only keeps notes, not thoughts; give one of the two")
        try:
            template = self.template.with_thoughts() if acting.thinking else self.template
        except DoesNotThink as error:
            raise DoesNotThink(f"{self.name} cannot think: {error}") from None
        value = named_policy(policy) if isinstance(policy, str) else policy
        dtype = self.dtype_of(acting)

        def new_cache() -> Cache:
            return Cache.for_model(
                self.model,
                policy=value,
                budget=acting.budget if "budget" not in unset or needs_budget(value) else None,
                prefill=acting.prefill,
                chunk=acting.chunk,
                dtype=dtype,
                cold_folder=cold_folder,
                cold_limit=cold_limit,
            )

        cache = new_cache()  # report a bad policy or budget now, not in the first episode
        if cache.recurrent and pages.last_pages is not None and not pages.rebuild:
            raise ValueError(
                f"last_pages={pages.last_pages} drops earlier pages from the cache, and the "
                f"recurrent states of {self.name} hold them; give rebuild=True as well, which "
                "reads what is left of the prompt anew"
            )
        return ActingModel(self, template, new_cache, acting, pages)

    def dtype_of(self, settings: ModelSettings) -> str:
        """Return the name of the dtype in which caches store dense entries."""
        match settings.cache_dtype:
            case "auto":
                return self.cache_dtype
            case "model":
                return str(self.model.dtype).removeprefix("torch.")
            case dtype:
                return dtype


_DECIDING = (
    *("decoding", "temperature", "max_new_tokens", "thinking"),
    *("observation_tokens", "observations", "pins"),
)
"""Settings that decide what a model reads and writes, beside those of pages."""


@dataclass(frozen=True, slots=True)
class ActingModel:
    """A `Model` that runs a `LocalModel` under one policy.

    `LocalModel.with_cache` makes it and describes its settings.
    """

    local: LocalModel
    """The model; other agents may share it."""
    template: Template = field(repr=False)
    """The prompt format, with thoughts if the model thinks."""
    new_cache: Callable[[], Cache]
    """Returns an empty cache."""
    settings: ActingSettings
    pages: PageSettings

    @property
    def name(self) -> str:
        """The name of the local model."""
        return self.local.name

    @property
    def answers_in_json(self) -> bool:
        """True for chat models. Models that were trained here write actions only."""
        return self.template.thoughts == "free"

    def begin(self, goal: str, *, seed: int = 0) -> "LocalConversation":
        """Begin an episode with an empty cache.

        Raises:
            PolicyError: a ValueError; the goal is pinned and does not fit into the budget.
        """
        return LocalConversation(self, goal, seed)

    @property
    def deciding(self) -> dict[str, Any]:
        """The settings that decide what the model reads and writes, apart from its policy."""
        cache_dtype = str(self.new_cache().dtype).removeprefix("torch.")
        acting = {name: getattr(self.settings, name) for name in _DECIDING}
        return {**acting, **self.pages.model_dump(), "cache_dtype": cache_dtype}

    def load(self, folder: Path) -> "LocalConversation":
        """Return the conversation that `LocalConversation.save` wrote.

        Raises:
            ConversationFileError, CacheFileError: ValueErrors; the folder holds no conversation
                with this model, policy, budget and settings, or a damaged one.
        """
        saved, cache = load(self.local.model, self.new_cache(), folder, self.deciding)
        conversation = LocalConversation(self, saved.first_goal)
        conversation.restore(saved, cache)
        return conversation


@dataclass(frozen=True, slots=True)
class PendingReply:
    """A reply that a `Batch` is writing; see `LocalConversation.start_reply`."""

    observation: EncodedText
    """The page text that the model is shown."""
    generation: Generation
    """The reply in progress, to be added to a `Batch`."""
    stopwatch: Stopwatch | None
    is_question: bool
    """True if the reply answers a question; an answer is not a step of an episode."""


class LocalConversation:
    """One episode, or several in a row: goals, pages, questions, and a model's replies to them."""

    def __init__(self, acting: ActingModel, goal: str, seed: int = 0) -> None:
        self._acting = acting
        self._local = acting.local
        self._first_goal = self._goal = _encodable(goal)
        self._prompt = EpisodePrompt(acting.template, acting.settings, self._first_goal, seed)
        self._stream = TokenStream(
            acting.new_cache,
            self._prompt.opening(self._first_goal),
            acting.template.separator,
            pins=acting.settings.pins,
            is_rebuilt=acting.pages.rebuild,
        )
        random = torch.Generator(device=self._local.model.device).manual_seed(seed)
        self._sampler = Sampler(acting.settings.temperature, random)
        self._held = HeldSpans()
        self._next_goal: list[int] = []
        """Ids of a goal or question that no page has followed yet."""
        self.is_cancelled: Callable[[], bool] = lambda: False
        """Asked before each token; True ends the reply with `Cancelled`."""
        self.on_progress: Listener | None = None
        """Told after each forward how far a reply is."""
        self._is_broken = False
        """True once an error has ended a reply in its middle."""

    @property
    def cache(self) -> Cache:
        """The cache of the present turn, to be inspected (kept positions, bytes) but not changed.

        `TokenStream` describes its spans. A model that rebuilds its prompt has another cache in
        every turn.
        """
        return self._stream.cache

    @property
    def num_turns(self) -> int:
        """Number of turns so far, those without a whole reply included."""
        return len(self._stream.turns)

    def _require_whole(self) -> None:
        if self._is_broken:
            raise BrokenConversation(
                "an error or an interruption ended a reply in its middle, so that the cache and "
                "the conversation differ; begin another one, or load a saved one"
            )

    def pursue(self, goal: str) -> None:
        """Replace the goal from the next reply on; what was read before stays in the cache."""
        self._goal = _encodable(goal)
        self._next_goal = self._acting.template.goal(self._goal)

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """Show `page` to the model and return its reply; see `Conversation.reply`.

        Raises:
            ContextLimit: the page and a reply do not fit the model's positions, and the cache
                frees none.
            TimeoutError: `deadline` passed between two tokens. The conversation can continue.
            Cancelled: `is_cancelled` returned True. The conversation can continue.
            OutOfMemory: no memory was left. The cache is freed; the conversation cannot continue.
        """
        return self._finish_now(self.start_reply(page, note, deadline))

    def answer(
        self,
        question: str,
        page: Page | None,
        deadline: float | None = None,
        *,
        schema: PreparedSchema | None = None,
    ) -> Reply:
        """Return the model's answer in words; see `LastingConversation.answer`.

        Under constrained decoding, a model that was trained here answers with a stop, which it may
        quote from `page`. Every other model writes any text up to its end token or the maximum, or
        with a `schema` the JSON that it allows.
        """
        template, question = self._acting.template, _encodable(question)
        form = "" if schema is None else _encodable(json.dumps(schema.source, ensure_ascii=False))
        asked = template.question(question, form=form)
        is_opening = question == self._goal and not self._stream.turns
        repeats = is_opening and asked == template.goal(question)
        self._goal, self._next_goal = question, [] if repeats else asked
        pending = self.start_reply(page, "", deadline, is_question=True, schema=schema)
        return self._finish_now(pending)

    def _finish_now(self, pending: PendingReply) -> Reply:
        """Let the model write a reply alone, and return it."""
        batch = Batch(self._local.model)
        batch.add(pending.generation)
        self._is_broken = True  # until the reply is over: a KeyboardInterrupt may end it anywhere
        self._tell(pending.generation)
        while len(batch):
            if self.is_cancelled():
                batch.remove(pending.generation)
                pending.generation.fail(Cancelled("the reply was cancelled while it was written"))
            else:
                batch.step()
            self._tell(pending.generation)
        self._is_broken = False
        return self.finish_reply(pending)

    def _tell(self, generation: Generation) -> None:
        if self.on_progress is not None:
            self.on_progress(generation.progress)

    def start_reply(
        self,
        page: Page | None,
        note: str = "",
        deadline: float | None = None,
        *,
        stopwatch: Stopwatch | None = None,
        is_question: bool = False,
        schema: PreparedSchema | None = None,
    ) -> PendingReply:
        """Begin a reply for a `Batch` of this model to write.

        Once its generation is over, pass the result to `finish_reply`, before the next turn.

        Args:
            page: None shows nothing but the question.
            stopwatch: charged with `tokenizer`, `grammar`, `reading` and `decoding`;
                `finish_reply` returns what it shows.
            is_question, schema: whether the reply answers a question, and in which JSON.

        Raises:
            ContextLimit: as `reply`.
        """
        self._require_whole()
        acting, template, stream = self._acting, self._acting.template, self._stream
        with timed(stopwatch, "tokenizer"):
            observation = template.encoded("") if page is None else self._prompt.observation(page)
            actions = ""
            if page is not None and not is_question:
                actions = self._prompt.further_actions(page)
            turn = self._new_turn(page, observation, note, actions)
        last_pages = acting.pages.last_pages
        stream.prepare_turn(None if page is None or last_pages is None else last_pages - 1)
        needed = (
            len(stream.pending) + len(turn.goal) + len(turn.shown) + acting.settings.max_new_tokens
        )
        if template.thinking is not None:
            needed += acting.settings.thinking + len(template.thinking.end)
        if not stream.cache.has_positions(needed):
            raise context_limit_error(stream.cache, needed)
        with timed(stopwatch, "grammar"):
            rule = self._new_rule(page, stopwatch, is_question=is_question, schema=schema)
        stream.append(turn)
        self._next_goal = []
        generation = Generation(
            stream.cache,
            stream.pending,
            rule,
            sampler=self._sampler,
            deadline=deadline,
            is_compiled=decoding(self._local.model) == COMPILED,
            num_logprobs=0,
            stopwatch=stopwatch,
        )
        return PendingReply(observation, generation, stopwatch, is_question)

    def _new_turn(self, page: Page | None, observation: str, note: str, actions: str) -> StreamTurn:
        template, last_pages = self._acting.template, self._acting.pages.last_pages
        shown = self._prompt.turn(observation, note, actions=actions)
        if last_pages is None or page is None:
            has_page = page is not None
            return StreamTurn(shown, (0, 0), goal=self._next_goal, has_page=has_page)
        if self._acting.pages.notes_only:
            left = self._prompt.turn("")
        else:
            head = serialize(replace(page, nodes=()), layout=template.layout)
            left = self._prompt.turn(head.text, note)
        start = common_start(shown, left)
        end = common_start(shown[start:][::-1], left[start:][::-1])
        return StreamTurn(shown, (start, len(shown) - end), goal=self._next_goal)

    def finish_reply(self, pending: PendingReply) -> Reply:
        """Return the reply of a generation that is over. Raises the error that ended it early.

        After a `TimeoutError` or `Cancelled` the stream has what was written of the reply, so that
        the next turn can follow.
        """
        generation, template, stream = pending.generation, self._acting.template, self._stream
        turn, ids = stream.turns[-1], generation.rule.ids
        if isinstance(generation.error, TimeoutError | Cancelled):
            stream.end_reply(ids, generation.unread)
        elif generation.error is not None:
            self._is_broken = True
        if isinstance(generation.error, OutOfMemory):
            stream.cache.reset()
        if generation.error is not None:
            raise generation.error
        prefilled_at, ended_at = generation.prefilled_at, generation.ended_at
        assert prefilled_at is not None and ended_at is not None, "the generation is not over"
        stream.end_reply(ids, generation.rule.pending)
        with timed(pending.stopwatch, "tokenizer"):
            answer = generation.rule.answer
            text, thought = template.decode(answer), ids[: len(ids) - len(answer)]
            if template.thinking is not None:
                thought = thought[: -len(template.thinking.end)]
        if self._acting.pages.notes_only:
            notes = notes_in(text, template.thoughts)
            counts = range(len(ids) + 1)
            num_noted = next(i for i in counts if template.decode(ids[:i]).startswith(notes))
            turn.action = (num_noted, len(ids))
        number = len(stream.turns) - 1
        with timed(pending.stopwatch, "tokenizer"):
            piece_ends = self._held.note_page(number, turn, pending.observation)
            ends = token_ends(template, answer, text)
        held: dict[str, str] = {}
        if not pending.is_question:  # the next step names what changes now
            held = self._held.changes(stream)
        return Reply(
            text=text,
            observation=str(pending.observation),
            num_tokens_in=generation.num_prompt_tokens,
            num_tokens_out=len(ids),
            thinking=template.decode(thought).strip() if thought else "",
            prefill_s=prefilled_at - generation.started_at,
            decode_s=ended_at - prefilled_at,
            cache=stream.cache_use,
            turn=number,
            token_ends=ends,
            confidences=_confidences(generation, num_thought=len(ids) - len(answer)),
            token_looks=_token_looks(generation, num_thought=len(ids) - len(answer)),
            piece_ends=piece_ends,
            held=held,
            parts=None if pending.stopwatch is None else pending.stopwatch.read(),
        )

    def save(self, folder: Path) -> None:
        """Write the conversation to a folder, from which `ActingModel.load` makes it again.

        It replaces what was saved there before, once it is complete on disk. Only its owner may
        read the files: they hold what was read and written.

        Raises:
            BrokenConversation: an error ended a reply in its middle.
            CacheFileError: a ValueError; the cache cannot be saved.
            OSError, WriteError: a file could not be written; what was saved before is intact.
        """
        self._require_whole()
        stream = self._stream
        save(
            SavedConversation(
                cache=new_cache_name(),
                seen=stream.cache.seen,
                first_goal=self._first_goal,
                goal=self._goal,
                nonce=self._prompt.nonce,
                next_goal=self._next_goal,
                pending=stream.pending,
                turns=stream.turns,
                known=self._prompt.known,
                earlier=stream.earlier,
                held=self._held.save(),
                random=base64.b64encode(bytes(self._sampler.random.get_state().tolist())),
                settings=self._acting.deciding,
            ),
            stream.cache,
            folder,
        )

    def restore(self, saved: SavedConversation, cache: Cache) -> None:
        """Become the conversation that was saved, with its cache.

        Raises:
            ConversationFileError: its random state is no such state.
        """
        try:
            state = torch.tensor(list(saved.random), dtype=torch.uint8)
            self._sampler.random.set_state(state)
        except RuntimeError as error:
            raise ConversationFileError(
                f"the saved random state fits no generator of this device: {error}"
            ) from error
        self._first_goal, self._goal = saved.first_goal, saved.goal
        self._prompt.nonce = saved.nonce
        self._next_goal = list(saved.next_goal)
        self._prompt.known = saved.known
        stream = self._stream
        stream.opening = self._prompt.opening(self._first_goal)
        stream.cache, stream.pending = cache, list(saved.pending)
        stream.turns, stream.earlier = saved.turns, saved.earlier
        self._held.restore(saved.held)

    def _new_rule(
        self,
        page: Page | None,
        stopwatch: Stopwatch | None,
        *,
        is_question: bool,
        schema: PreparedSchema | None,
    ) -> Rule:
        acting, grammar, template = self._acting, self._local.grammar, self._acting.template
        max_tokens, thoughts = acting.settings.max_new_tokens, template.thoughts
        rule: Rule
        if schema is not None:
            rule = TextRule(
                template.decode,
                end_ids=template.end_ids,
                max_tokens=max_tokens,
                matcher=grammar.match(f"start: value\nvalue: {rule_of(schema.grammar)}"),
            )
        elif acting.settings.decoding == "free" or (is_question and thoughts == "free"):
            rule = FreeRule(template, max_tokens=max_tokens, is_action=not is_question)
        else:
            matcher = grammar.start(
                _NOTHING if page is None else page,
                self._goal,
                thoughts=thoughts,
                max_tokens=max_tokens,
                only_stop=is_question,
                names_elements=self._local.names_elements,
            )
            rule = GrammarRule(matcher, stopwatch=stopwatch)
        if template.thinking is None:
            return rule
        return ThinkingRule(rule, template.thinking, max_tokens=acting.settings.thinking)


def _confidences(generation: Generation, *, num_thought: int) -> tuple[float | None, ...]:
    """Return the confidence of each token after the thought, rounded, as the trace holds it."""
    found: list[float | None] = [None] * len(generation.rule.ids)
    for place, noted in zip(generation.sampled_at, generation.logprobs, strict=True):
        if place < len(found):  # not an end token
            found[place] = round(math.exp(noted.value), 3)
    return tuple(found[num_thought:])


def _token_looks(generation: Generation, *, num_thought: int) -> tuple[int, ...]:
    """Return the entries fetched before each token after the thought; none if no token looked."""
    found = [0] * len(generation.rule.ids)
    for place, look in zip(generation.sampled_at, generation.looks, strict=True):
        if look is not None and place < len(found):
            found[place] = sum(look.fetched.values())
    return tuple(found[num_thought:]) if any(found[num_thought:]) else ()


def _encodable(text: str) -> str:
    """Return `text` with a question mark for each lone surrogate, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


_NOTHING = Page("", "", ())
"""The page of a turn that shows none."""
