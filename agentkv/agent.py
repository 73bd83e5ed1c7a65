"""`Agent`: a model with a cache policy that pursues goals on web pages, in sessions."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from playwright.sync_api import Page as PlaywrightPage

from agentkv.answer_form import AnswerForm, AnswerFormError
from agentkv.defaults import POLICY
from agentkv.episode import Approve, BeforeAction, Environment, EpisodeLimits, run_episode
from agentkv.models.model import (
    AnswersInJson,
    CachedModel,
    Conversation,
    LastingConversation,
    LastingModel,
    Model,
    Reply,
    Reporting,
)
from agentkv.progress import Listener, Progress, telling_of_compilation
from agentkv.settings import ActingSettings, PageSettings, SettingsError
from agentkv.trace import A, Episode, Step
from agentkv_env.actions import ActionError, extract, parse
from agentkv_env.masking import Secrets
from agentkv_env.named_secrets import NamedSecrets, Secret
from agentkv_env.ocr import Ocr
from agentkv_env.page_dialogs import Dialogs
from agentkv_env.session import Session as BrowserSession
from agentkv_env.session import require_chromium_page

_OF_LOADING = {"device", "dtype", "weights", "adapter", "merge_adapter"}
"""Settings that matter when a model is loaded."""


class PageOptions(TypedDict, total=False):
    """Options of a session: its seed, and how it treats the page."""

    seed: int
    """Equal seeds give equal sessions on equal pages; 0 if left out."""
    hosts: Sequence[str] | None
    """For a Playwright page: the only hosts that the agent may reach; None allows just the host
    that the page is on when a goal is given. An `Environment` has its own."""
    ocr: bool
    """For a Playwright page: read the text in images, if Tesseract is installed; True if left
    out."""
    secrets: Secrets | None
    """Texts to mask in all steps; text typed into password fields is added to them."""
    named_secrets: Mapping[str, Secret] | None
    """For a Playwright page: secrets that the agent may type on their hosts, by name. Goals, the
    model and all records have `<secret:name>` in place of a value."""
    files: Sequence[str | Path]
    """For a Playwright page: files, and folders of files, that the agent may upload; it reads no
    others."""
    dialogs: Dialogs
    """For a Playwright page: what answers its confirm, prompt and warning before it is left:
    `ask` (if left out): the agent; `accept` or `dismiss`: always the same button."""


class Agent:
    """A model with a cache policy, ready for any number of sessions and episodes.

    Args:
        model: a `LocalModel`, a name for `agentkv.load_model`, or any other `Model`, such as a
            scripted one.
        policy: as in `LocalModel.with_cache`; without effect on any other `Model`.
        settings: what the model reads and writes, and when episodes end; None: the defaults.
            `ActingSettings` describes them. `device` and `dtype` matter where `model` is a name.
            On a `Model` that is not local, only `strict` and the ends of episodes have an effect.
        on_progress: told what is being done, such as loading the model, compiling kernels and
            reading a page, in the thread that does it; None: nobody is.
        overrides: fields of `ActingSettings`, such as `budget` or `decoding`, which take the place
            of those in `settings`; and `last_pages`, `notes_only` and `rebuild` of `PageSettings`.

    Raises:
        ModelError: `model` is a name, and no such model can be loaded.
        SettingsError: a ValueError; an unknown setting, or a value that it cannot have.
        ValueError: unknown policy, or a budget that the policy cannot keep.
    """

    def __init__(
        self,
        model: Model | CachedModel | str,
        policy: Any = POLICY,
        settings: ActingSettings | None = None,
        *,
        on_progress: Listener | None = None,
        **overrides: Any,
    ) -> None:
        pages = {n: overrides.pop(n) for n in PageSettings.model_fields if n in overrides}
        self.settings = ActingSettings.merged(settings, overrides)
        if isinstance(model, str):
            if on_progress is not None:
                on_progress(Progress("loading", name=model))
            from agentkv.models.load import load_model  # imports take seconds

            model = load_model(
                model,
                device=self.settings.device,
                dtype=self.settings.dtype,
                weights=self.settings.weights,
                adapter=self.settings.adapter,
                merge_adapter=self.settings.merge_adapter,
                on_progress=on_progress,
            )
        elif given := overrides.keys() & _OF_LOADING:
            raise SettingsError(
                f"{' and '.join(sorted(given))}: {type(model).__name__} is loaded already; give "
                "the model's name here, or the option to agentkv.load_model"
            )
        if isinstance(model, CachedModel):
            model = model.with_cache(policy, self.settings, **pages)
        self.model: Model = model
        self.on_progress = on_progress

    def open(self, page: Environment | PlaywrightPage, **options: Unpack[PageOptions]) -> "Session":
        """Open a session on `page`, which takes goal after goal on one cache.

        Args:
            page: a browser session of `agentkv_env` or another `Environment`, or a Playwright page
                (sync API), which stays open afterwards.
            options: fields of `PageOptions`.

        Raises:
            TypeError: `page` is neither an `Environment` nor a Playwright page in Chromium.
            ValueError: a secret has no proper name.
        """
        return Session(self, page, **options)

    def run(
        self,
        page: Environment | PlaywrightPage,
        goal: str,
        *,
        max_steps: int = 30,
        timeout_s: float = 900.0,
        on_step: Callable[[Step], None] | None = None,
        before_action: BeforeAction | None = None,
        approve: Approve | None = None,
        answer: type[A] | None = None,
        screenshots: Path | None = None,
        **options: Unpack[PageOptions],
    ) -> Episode[A]:
        """Run one episode: pursue `goal`, beginning at the current state of `page`.

        Args:
            page, options: as in `open`.
            goal, max_steps, timeout_s, on_step, before_action, approve, answer, screenshots: as in
                `Session.do`.

        Returns:
            The episode, whatever its status; `Episode.secrets` holds all secrets.

        Raises:
            TypeError: `page` is neither an `Environment` nor a Playwright page.
            Exception: as in `Session.do`.
        """
        with self.open(page, **options) as session:
            return session.do(
                goal,
                max_steps=max_steps,
                timeout_s=timeout_s,
                on_step=on_step,
                before_action=before_action,
                approve=approve,
                answer=answer,
                screenshots=screenshots,
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question in a session."""

    text: str
    """The answer without fences. If the reply holds no stop, this is the whole reply."""
    reply: Reply
    """The whole reply and its measurements."""


class SessionError(RuntimeError):
    """A session that is closed, or whose model cannot do what was asked."""


class Session:
    """An agent on one page, goal after goal, on one cache; a context manager.

        with agent.open(page) as session:
            session.do("Put the blue kayak into the cart")
            print(session.ask("What does it cost?").text)

    Between two calls the page belongs to the caller, who may act on it. Only `cancel` may be called
    from another thread. Scripted models begin anew with every goal. An error of the model or a
    `KeyboardInterrupt` in the middle of a reply breaks the session: `BrokenConversation` follows.
    """

    def __init__(
        self,
        agent: Agent,
        page: Environment | PlaywrightPage,
        *,
        seed: int = 0,
        hosts: Sequence[str] | None = None,
        ocr: bool = True,
        secrets: Secrets | None = None,
        named_secrets: Mapping[str, Secret] | None = None,
        files: Sequence[str | Path] = (),
        dialogs: Dialogs = "ask",
    ) -> None:
        """Use `Agent.open`, which describes the arguments, or `Session.load`."""
        if type(page).__module__.startswith("playwright.async_api"):
            raise TypeError("found a page of playwright.async_api; use agentkv.AsyncSession for it")
        if not isinstance(page, Environment):
            require_chromium_page(page)
        self._agent, self._page = agent, page
        self._seed, self._hosts, self._ocr, self._files = seed, hosts, ocr, tuple(files)
        self._dialogs: Dialogs = dialogs
        self._named_secrets = dict(named_secrets or {})
        self.secrets = Secrets() if secrets is None else secrets
        self.secrets.update(NamedSecrets(self._named_secrets).masks)
        """Texts that steps show as `***`."""
        self._conversation: Conversation | None = None
        self._is_cancelled = False
        self._is_closed = False

    def do(
        self,
        goal: str,
        *,
        max_steps: int = 30,
        timeout_s: float = 900.0,
        on_step: Callable[[Step], None] | None = None,
        before_action: BeforeAction | None = None,
        approve: Approve | None = None,
        answer: type[A] | None = None,
        screenshots: Path | None = None,
    ) -> Episode[A]:
        """Pursue `goal`, beginning at the current state of the page, with all that was read before.

        Args:
            goal: the task in plain words; `<secret:name>` stands for a secret.
            max_steps: maximum number of actions.
            timeout_s: time limit in seconds, checked between tokens and between steps.
            on_step: called with every step as soon as it is over.
            before_action: called with the page and each action, the stop included, before it is
                carried out. It returns None to allow the action or another action to carry out
                instead, or raises `ActionRefused`, whose message the model is shown. An action on
                an element names it by its number on the page (`Page.element`).
            approve: called with the page and each action that may change something, after
                `before_action`: all but the stop and those that only look (`Action.only_looks`).
                True carries it out. After False the model is told that the user did not allow it,
                and goes on; to end the episode instead, call `cancel` before.
            answer: subclass of `pydantic.BaseModel`. After the stop, a chat model answers the goal
                again, in JSON of its schema, and `Episode.answer` is the instance. None: the text
                of the stop.
            screenshots: folder for a screenshot of each page, `000.jpg` onwards; None for none.

        Returns:
            The episode, whatever its status. The session can go on after each of them, but
            `context_limit`, with which the model has no positions left, comes again. After
            `out_of_memory` its conversation cannot go on; open another session.

        Raises:
            SessionError: the session is closed.
            UnknownSecret: a ValueError; the goal names a secret that nobody gave.
            AnswerFormError: a ValueError, before anything is done; `answer` is no class that
                answers can have, or the model cannot write them.
            AnswerInvalid: a ValueError; the answer does not validate, such as one cut off.
            Exception: any error of the model or of a hook, except `TimeoutError`, `ContextLimit`,
                `OutOfMemory` and `Cancelled` of the model, which end the episode, and
                `ActionRefused`.
        """
        self._require_open()
        self._is_cancelled = False
        agent = self._agent
        form = None if answer is None else self._form_of(answer)
        limits = EpisodeLimits(
            strict=agent.settings.strict,
            max_steps=max_steps,
            max_parse_failures=agent.settings.max_parse_failures,
            max_repeats=agent.settings.max_repeats,
            timeout_s=timeout_s,
            on_step=on_step,
            before_action=before_action,
            screenshots=screenshots,
            secrets=self.secrets,
            is_cancelled=lambda: self._is_cancelled,
            approve=approve,
            on_progress=agent.on_progress,
            goal=goal,
            form=form,
        )
        with telling_of_compilation(agent.on_progress), self._environment() as environment:
            named = environment.secrets if isinstance(environment, BrowserSession) else None
            (named or NamedSecrets()).require(goal)
            if named is not None:
                self.secrets.update(named.masks)
            return run_episode(self._pursue(goal), environment, limits)

    def ask(self, question: str, *, look: bool = True, timeout_s: float = 900.0) -> Answer:
        """Return the model's answer in words; nothing is done on the page.

        nano was trained to quote answers from the page that it is shown, and needs `look`.

        Args:
            question: the question in plain words.
            look: show the model the current page with the question; False: it answers from what
                it has read.
            timeout_s: time limit in seconds, checked between tokens.

        Raises:
            SessionError: the session is closed, or its model is a script.
            TimeoutError, Cancelled: the answer took too long, or `cancel` was called. The session
                can go on.
            ContextLimit: the model has no positions left.
            OutOfMemory: no memory was left. The session cannot go on.
            BrowserGone: the browser was lost.
        """
        self._require_open()
        self._is_cancelled = False
        deadline = time.monotonic() + timeout_s
        conversation = self._conversation or self._begin(question)
        if not isinstance(conversation, LastingConversation):
            raise SessionError(
                f"the model {self._agent.model.name} pursues goals only and answers no question; "
                "give the agent a language model"
            )
        page = None
        if look:
            with self._environment() as environment:
                page = environment.observe()
        with telling_of_compilation(self._agent.on_progress):
            reply = conversation.answer(question, page, deadline)
        return Answer(_answer_in(reply.text), reply)

    def cancel(self) -> None:
        """End the goal or question that is being worked on, before the next token or step.

        The episode's status is `cancelled`; `ask` raises `Cancelled`. Any thread may call this.
        Without effect between calls.
        """
        self._is_cancelled = True

    def save(self, folder: str | Path) -> None:
        """Write the session to a folder, from which `load` makes it again. The page is not saved.

        It replaces the session that was saved there before, once it is complete on disk. Only its
        owner may read the files, because they hold what was read on pages and typed into them.

        Raises:
            SessionError: the session is closed or has no goal yet, or its model is a script.
            CacheFileError: a ValueError; the cache cannot be saved.
            OSError, WriteError: a file could not be written; what was saved before is intact.
        """
        self._require_open()
        if self._conversation is None:
            raise SessionError("there is nothing to save before the first goal or question")
        if not isinstance(self._conversation, LastingConversation):
            raise SessionError(f"the model {self._agent.model.name} keeps nothing to save")
        self._conversation.save(Path(folder))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        agent: Agent,
        page: Environment | PlaywrightPage,
        **options: Unpack[PageOptions],
    ) -> Self:
        """Return the session that `save` wrote, which goes on exactly as the saved one would have.

        Args:
            folder: where it was saved.
            agent: has the model, policy, budget and other settings of the saved session.
            page: the page to go on with; it need not be the same one.
            options: fields of `PageOptions`; a `seed` has no effect.

        Raises:
            SessionError: the agent's model is a script.
            ConversationFileError, CacheFileError: ValueErrors; the folder holds no session with
                this model, policy, budget and settings, or a damaged one.
        """
        if not isinstance(agent.model, LastingModel):
            raise SessionError(f"the model {agent.model.name} keeps nothing that could be loaded")
        session = cls(agent, page, **options)
        session._use(agent.model.load(Path(folder)))
        return session

    def close(self) -> None:
        """Free the cache. The page stays open."""
        self._conversation = None
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise SessionError("this session is closed; open another one with Agent.open")

    def _form_of(self, answer: type[A]) -> AnswerForm[A]:
        model = self._agent.model
        if not (isinstance(model, AnswersInJson) and model.answers_in_json):
            raise AnswerFormError(
                f"the model {model.name} writes actions only and cannot answer as "
                f"{getattr(answer, '__name__', answer)}; give the agent a chat model, or read "
                "the text of `episode.answer`"
            )
        return AnswerForm.of(answer)

    def _pursue(self, goal: str) -> Conversation:
        """Return a conversation that has been given `goal`."""
        if isinstance(self._conversation, LastingConversation):
            self._conversation.pursue(goal)
            return self._conversation
        return self._begin(goal)

    def _begin(self, goal: str) -> Conversation:
        return self._use(self._agent.model.begin(goal, seed=self._seed))

    def _use(self, conversation: Conversation) -> Conversation:
        self._conversation = conversation
        if isinstance(conversation, LastingConversation):
            conversation.is_cancelled = lambda: self._is_cancelled
        if isinstance(conversation, Reporting):
            conversation.on_progress = self._agent.on_progress
        return conversation

    @contextmanager
    def _environment(self) -> Iterator[Environment]:
        """Yield the page as an environment.

        A Playwright page is attached to only meanwhile, so that the caller can use it between two
        calls. The next call goes on in the tab where this one ends.
        """
        if isinstance(self._page, Environment):
            yield self._page
            return
        ocr = Ocr.find() if self._ocr else None
        with BrowserSession.on(
            self._page,
            hosts=self._hosts,
            ocr=ocr,
            files=self._files,
            dialogs=self._dialogs,
            secrets=self._named_secrets,
        ) as environment:
            try:
                yield environment
            finally:
                if not environment.page.is_closed():
                    self._page = environment.page


def _answer_in(reply: str) -> str:
    """Return the answer of the stop in `reply`, or all of it if it has no stop."""
    try:
        action = parse(extract(reply, strict=False), strict=False)
    except ActionError:
        return reply.strip()
    return action.answer if action.kind == "stop" else reply.strip()
