"""`AsyncSession`: a `Session` on a page of Playwright's async API."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from playwright.async_api import Page as AsyncPage
from playwright.async_api import async_playwright

from agentkv.agent import Agent, Answer, PageOptions, Session, SessionError
from agentkv.browsing import host_rules
from agentkv.trace import A, Episode, Step
from agentkv_env.actions import Action
from agentkv_env.async_bridge import AsyncBridge
from agentkv_env.browser import find_executable
from agentkv_env.masking import Secrets
from agentkv_env.page import Page

T = TypeVar("T")


class AsyncSession:
    """An agent on one page of the async API, goal after goal, on one cache; see `Session`.

        async with AsyncSession(agent, page) as session:
            await session.do("Put the blue kayak into the cart")
            print((await session.ask("What does it cost?")).text)

    Model and page reader run in a thread of their own, so the event loop goes on. One call runs at
    a time, and a second one waits for it. A call whose task is cancelled ends before the next
    token, action or hook, and the session can go on.

    Args:
        agent: its model must not be in use by another thread.
        page: a page of Playwright's async API in Chromium, which stays open afterwards.
        options: fields of `PageOptions`.

    Raises:
        TypeError: `page` is no such page.
        RuntimeError: there is no running event loop.
    """

    def __init__(
        self,
        agent: Agent,
        page: AsyncPage,
        **options: Unpack[PageOptions],
    ) -> None:
        if not isinstance(page, AsyncPage):
            kind = f"{type(page).__module__}.{type(page).__qualname__}"
            raise TypeError(
                f"expected a page of playwright.async_api, found {kind}; open it with "
                "async_playwright(), or use Agent.open"
            )
        self._loop = asyncio.get_running_loop()
        self._bridge = AsyncBridge(self._loop)
        self._page = self._bridge.wrap(page)
        self._session = Session(
            agent,
            self._page,
            **options,
        )
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="agentkv session")
        self._turn = asyncio.Lock()
        self._is_closed = False

    @property
    def secrets(self) -> Secrets:
        """Texts that steps show as `***`."""
        return self._session.secrets

    async def do(
        self,
        goal: str,
        *,
        max_steps: int = 30,
        timeout_s: float = 900.0,
        on_step: Callable[[Step], None | Awaitable[None]] | None = None,
        before_action: Callable[[Page, Action], Action | None | Awaitable[Action | None]]
        | None = None,
        approve: Callable[[Page, Action], bool | Awaitable[bool]] | None = None,
        answer: type[A] | None = None,
        screenshots: Path | None = None,
    ) -> Episode[A]:
        """Pursue `goal`; see `Session.do`. Hooks run in the event loop and may be coroutines."""
        return await self._call(
            self._session.do,
            goal,
            max_steps=max_steps,
            timeout_s=timeout_s,
            on_step=None if on_step is None else partial(self._bridge.call_hook, on_step),
            before_action=(
                None if before_action is None else partial(self._bridge.call_hook, before_action)
            ),
            approve=None if approve is None else partial(self._bridge.call_hook, approve),
            answer=answer,
            screenshots=screenshots,
        )

    async def ask(self, question: str, *, look: bool = True, timeout_s: float = 900.0) -> Answer:
        """Return the model's answer in words; see `Session.ask`."""
        return await self._call(self._session.ask, question, look=look, timeout_s=timeout_s)

    async def save(self, folder: str | Path) -> None:
        """Write the session to a folder; see `Session.save`."""
        await self._call(self._session.save, folder)

    @classmethod
    async def load(
        cls,
        folder: str | Path,
        agent: Agent,
        page: AsyncPage,
        **options: Unpack[PageOptions],
    ) -> Self:
        """Return the session that `save` or `Session.save` wrote; see `Session.load`."""
        session = cls(agent, page, **options)
        load = partial(Session.load, **options)
        try:
            session._session = await session._call(load, folder, agent, session._page)
        except BaseException:
            await session.close()
            raise
        return session

    def cancel(self) -> None:
        """End the goal or question that is being worked on; see `Session.cancel`."""
        self._session.cancel()

    async def close(self) -> None:
        """Free the cache. The page stays open. Calls that wait for their turn raise."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with self._turn:
                self._session.close()
        finally:
            self._worker.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call `function` in the worker; a caller who is cancelled waits until the worker rests."""
        async with self._turn:
            if self._is_closed:
                raise SessionError("this session is closed; open another one")
            work = partial(self._work, function, *args, **options)
            future = self._loop.run_in_executor(self._worker, work)
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                while not future.done():  # a call that has yet to begin forgets a cancellation
                    self._session.cancel()
                    self._bridge.cancel_hook()
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait({future}, timeout=0.05)
                with contextlib.suppress(Exception, CancelledError):
                    future.result()
                raise

    def _work(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call `function`, and forget its handlers; in the worker."""
        try:
            return function(*args, **options)
        finally:
            self._bridge.forget_handlers()


@asynccontextmanager
async def async_browser(addresses: Mapping[str, str] | None = None) -> AsyncIterator[AsyncPage]:
    """Start Chromium and yield a page of Playwright's async API; see `agentkv.browser`."""
    rules = host_rules(addresses or {})
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=find_executable(), args=rules)
        try:
            yield await running.new_page()
        finally:
            await running.close()
