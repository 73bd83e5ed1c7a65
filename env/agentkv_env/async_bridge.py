"""Playwright's async API as its sync API, for a thread beside the event loop.

The sync API cannot run in a thread with an event loop, such as a notebook's. So a worker thread
runs the synchronous code, and every call goes to the loop as a coroutine that the worker waits for.
As with the sync API, event handlers run in the worker, while it waits for some call, each in a
greenlet of its own: a handler may wait for calls as well, and it may end the call that is waited
for by raising an exception in its greenlet.
"""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from greenlet import getcurrent, greenlet


class AsyncBridge:
    """Connects one worker thread to the objects of an event loop.

    Args:
        loop: the running loop that the objects of Playwright's async API belong to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: SimpleQueue[Callable[[], object]] = SimpleQueue()
        """What the worker does while it waits: begin a handler, or go on after a call."""
        self._handlers: dict[Callable[..., object], Callable[..., None]] = {}
        self._pump: greenlet | None = None
        """Takes the events, one by one."""
        self._cancellable: Future[Any] | None = None

    def wrap(self, value: Any) -> Any:
        """Return `value` for synchronous code.

        Objects of the async API become bridged objects, in lists too. Other values stay as they
        are.
        """
        if isinstance(value, list):
            return [self.wrap(each) for each in value]
        is_playwrights = type(value).__module__.partition("._")[0] == "playwright.async_api"
        return BridgedObject(self, value) if is_playwrights else value

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call `function` in the loop, await what it returns, and return that.

        Only the worker may call this. Event handlers run meanwhile.
        """
        return self._wait(self._start(function, *args, **options))

    def call_hook(self, hook: Callable[..., Any], *args: Any) -> Any:
        """Call `hook` as `call` does, unless `cancel_hook` is called meanwhile.

        Raises:
            CancelledError: of `concurrent.futures`; `cancel_hook` was called.
        """
        self._cancellable = self._start(hook, *args)
        try:
            return self._wait(self._cancellable)
        finally:
            self._cancellable = None

    def cancel_hook(self) -> None:
        """Cancel the hook that the worker waits for, if any. Any thread may call this."""
        future = self._cancellable
        if future is not None:
            future.cancel()

    def forget_handlers(self) -> None:
        """Forget all handlers and the events that no handler has seen. Only the worker may call
        this, once nothing listens any more."""
        self._handlers.clear()
        self._events = SimpleQueue()

    def _start(self, function: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
        async def invoke() -> Any:
            result = function(*args, **options)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(invoke(), self._loop)

    def _wait(self, future: "Future[Any]") -> Any:
        """Let handlers run until `future` is done; it is cancelled if one raises in here."""
        events, waiting = self._events, getcurrent()
        is_waiting = True

        def go_on() -> None:
            if is_waiting:
                waiting.switch()

        future.add_done_callback(lambda _: events.put(go_on))
        if self._pump is None or self._pump.dead:
            self._pump = greenlet(self._take_events)
        try:
            while not future.done():
                self._pump.switch()
        except BaseException:
            future.cancel()
            raise
        finally:
            is_waiting = False
        return self.wrap(future.result())

    def _take_events(self) -> None:
        while True:
            self._events.get()()

    def unwrap(self, value: Any) -> Any:
        """Return an argument as the async API takes it.

        Bridged objects become those of the async API. Functions become handlers that have the
        worker call them.
        """
        if isinstance(value, BridgedObject):
            return value.bridged
        return self._handler(value) if callable(value) else value

    def _handler(self, handler: Callable[..., object]) -> Callable[..., None]:
        """Return one function for each handler, so that it can be removed as a listener."""
        if handler not in self._handlers:
            # the sync API passes only as many arguments as the handler takes
            num_taken = len(inspect.signature(handler).parameters)

            def put(*args: Any) -> None:
                wrapped = [self.wrap(each) for each in args[:num_taken]]
                self._events.put(lambda: greenlet(handler).switch(*wrapped))

            self._handlers[handler] = put
        return self._handlers[handler]


class BridgedObject:
    """An object of Playwright's async API with the methods of the sync API.

    Bridged objects of the same object are equal.
    """

    def __init__(self, bridge: AsyncBridge, bridged: Any) -> None:
        self._bridge = bridge
        self.bridged = bridged
        """The object of the async API."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.bridged, name)
        if not callable(value):
            return self._bridge.wrap(value)

        def method(*args: Any, **options: Any) -> Any:
            bridge = self._bridge
            given = {name: bridge.unwrap(option) for name, option in options.items()}
            return bridge.call(value, *map(bridge.unwrap, args), **given)

        return method

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BridgedObject) and self.bridged is other.bridged

    def __hash__(self) -> int:
        return hash(self.bridged)
