"""The server as an ASGI application: routes, keys and limits."""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agentkv.dialog.rendering import TemplateError
from agentkv.serve import page
from agentkv.serve.body import RequestError
from agentkv.serve.engine import Engine
from agentkv.serve.job import (
    EngineJob,
    Event,
    ReplyDelta,
    ReplyEnd,
    ReplyFailure,
    SchemaViolated,
    Stopping,
)
from agentkv.serve.metrics import CONTENT_TYPE, Metrics
from agentkv.serve.protocols.answer import Answer, ErrorForm, Failure, Json
from agentkv.serve.protocols.messages_answers import messages_error
from agentkv.serve.protocols.messages_requests import CountRequest, MessagesRequest
from agentkv.serve.protocols.openai_answers import openai_error
from agentkv.serve.protocols.openai_requests import ChatRequest, CompletionRequest, parse
from agentkv.serve.protocols.responses_requests import read, renamed
from agentkv.serve.responses import Responses
from agentkv.serve.slots import Slots

_log = logging.getLogger(__name__)
Handler = Callable[[Request, str], Awaitable[Response]]
"""Answers a request of an owner."""
SESSION_HEADER = "x-agentkv-session"
"""Header that names the session of a request."""
_MESSAGES = "/v1/messages"
EVERYONE = "everyone"
"""Owner of all sessions on a server without keys."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask, and how much."""

    owners: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Owners by the SHA-256 of their API key; empty: everyone may ask."""
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1")
    """Names by which the server may be addressed. Any other one is refused, so that a page in the
    user's browser cannot reach it under a name of its own."""
    max_body: int = 16 * 2**20
    """Bytes of a request."""
    body_s: float = 30.0
    """Seconds in which a request must arrive."""
    request_s: float = 600.0
    """Seconds in which a request must be answered."""

    @classmethod
    def with_keys(cls, keys: Sequence[str], **rest: Any) -> "Access":
        """Return the access of requests with one of these API keys; of all, if there are none.

        The names of owners do not tell their keys.
        """
        hashes = [hashlib.sha256(key.encode()).hexdigest() for key in keys]
        names = [hashlib.sha256(f"owner {each}".encode()).hexdigest()[:16] for each in hashes]
        return cls(dict(zip(hashes, names, strict=True)), **rest)


class Api:
    """The handlers of all routes.

    Args:
        model: name of the model in requests.
        takes_any_model: answer requests for models of other names too; the answer says `model`.
        has_page: serve the page, and the addresses that give it the text of sessions.
    """

    def __init__(
        self,
        engine: Engine,
        model: str,
        access: Access,
        *,
        takes_any_model: bool = False,
        has_page: bool = False,
    ) -> None:
        self.engine, self.model, self._access = engine, model, access
        self._takes_any_model, self._has_page = takes_any_model, has_page
        self._metrics = Metrics(engine)
        self.responses = Responses()
        self._slots = Slots(engine, self._body)
        self._created = int(time.time())

    def application(self) -> Starlette:
        """Return the ASGI application."""
        chat = partial(self._answer, ChatRequest)
        complete = partial(self._answer, CompletionRequest)
        message = partial(self._answer, MessagesRequest)
        routes: list[tuple[str, list[str], Handler]] = [
            ("/health", ["GET"], self._health),
            ("/metrics", ["GET"], self._show_metrics),
            ("/v1/models", ["GET"], self._models),
            ("/v1/models/{name:path}", ["GET"], self._one_model),
            ("/v1/responses", ["POST"], self._respond),
            *self.responses.routes(),
            ("/v1/chat/completions", ["POST"], chat),
            ("/v1/completions", ["POST"], complete),
            (_MESSAGES, ["POST"], message),
            (f"{_MESSAGES}/count_tokens", ["POST"], self._count_tokens),
            *self._slots.routes(show_text=self._has_page),
            *(page.routes() if self._has_page else ()),
        ]
        application = Starlette(
            routes=[
                Route(path, self._guarded(path, handler, _error_form(path)), methods=methods)
                for path, methods, handler in routes
            ],
            exception_handlers={HTTPException: self._http_error},
        )
        # a path that differs by a slash is unknown: a redirect would ask for no key and name a host
        # that only the request gives
        application.router.redirect_slashes = False
        return application

    def _guarded(
        self, path: str, handler: Handler, error_form: ErrorForm = openai_error
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that lets in who may ask, and answers errors in a protocol's form."""

        async def handle(request: Request) -> Response:
            try:
                self._require_host(request)
                response = await handler(request, self._owner(request, path))
            except ClientDisconnect:
                response = Response(status_code=499)
            except Exception as error:  # whatever it is, the client gets its protocol's form of it
                failure = Failure.of(error)
                if failure.status == 500:
                    _log.exception("a request failed")
                response = JSONResponse(
                    error_form(failure), failure.status, headers=_error_headers(failure.status)
                )
            self._metrics.count(path, response.status_code)
            return response

        return handle

    def _require_host(self, request: Request) -> None:
        """Refuse what a page in the user's browser may have sent, unless keys decide instead."""
        if self._access.owners:
            return
        origin = request.headers.get("origin")
        given = [f"//{request.headers.get('host', '')}", *([origin] if origin else [])]
        for address in given:
            try:
                name = urlsplit(address).hostname
            except ValueError:
                name = None
            if name not in self._access.hosts:
                raise RequestError(
                    f"this server does not answer to {address[:100]!r}; allow it with --allow-host",
                    status=403,
                )

    def _owner(self, request: Request, path: str) -> str:
        """Return the owner of a request. Raises RequestError if the key is missing or unknown."""
        owners = self._access.owners
        if not owners or path == "/health" or path in page.PATHS:
            return EVERYONE
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        keys = [key] if scheme.lower() == "bearer" else []
        for key in (*keys, request.headers.get("x-api-key", "")):
            given = hashlib.sha256(key.strip().encode("utf-8", "replace")).hexdigest()
            if given in owners:
                return owners[given]
        raise RequestError(
            "the API key is missing or wrong; send it as Authorization: Bearer KEY or as "
            "X-API-Key: KEY",
            code="invalid_api_key",
            status=401,
        )

    async def _body(self, request: Request) -> bytes:
        """Read the body. Raises RequestError if it is too large, too slow or of another type."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # a page in the user's browser can post other types to us without asking
            raise RequestError(
                f"the content type must be application/json; found {kind[:80] or 'none'}",
                status=415,
            )
        limit = self._access.max_body
        body = bytearray()
        try:
            async with asyncio.timeout(self._access.body_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise RequestError(f"the body has more than {limit} bytes", status=413)
        except TimeoutError:
            raise RequestError(
                f"the body did not arrive within {self._access.body_s:g} s", status=408
            ) from None
        return bytes(body)

    # ---- replies

    async def _answer(
        self,
        kind: type[ChatRequest | CompletionRequest | MessagesRequest],
        request: Request,
        owner: str,
    ) -> Response:
        asked = parse(kind, await self._body(request))
        return await self._reply(asked, asked.answer(self.model), request, owner)

    async def _respond(self, request: Request, owner: str) -> Response:
        asked = read(await self._body(request))
        chat, answer = await self.responses.begin(asked, owner, self.model)
        try:
            return await self._reply(chat, answer, request, owner)
        except RequestError as error:
            raise renamed(error) from None

    async def _reply(
        self,
        asked: ChatRequest | CompletionRequest | MessagesRequest,
        answer: Answer,
        request: Request,
        owner: str,
    ) -> Response:
        """Answer a request whose body is valid."""
        self._require_model(asked.model)
        # a conversation may be long, and other requests go on meanwhile
        query = await asyncio.to_thread(
            asked.query, owner, request.headers.get(SESSION_HEADER), self.engine.sessions.policies
        )
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop, deadline = asyncio.get_running_loop(), time.monotonic() + self._access.request_s

        def send(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(events.put_nowait, event)

        # a schema or a grammar may take a while to read, and other requests go on meanwhile
        job = await asyncio.to_thread(asked.job, self.engine.template, query, send, deadline)
        self.engine.submit(job)
        try:
            async with _leaving(request) as gone:
                event = await _next(events, gone)
                while isinstance(event, ReplyDelta) and not asked.stream:
                    for _ in answer.events(event):  # the answer takes them in
                        pass
                    event = await _next(events, gone)
            if isinstance(event, ReplyFailure):  # until now, errors have a status
                raise event.error
            if isinstance(event, ReplyEnd) and not asked.stream:
                await _check(job, answer, event)
                return JSONResponse(answer.whole(event))
        except BaseException:
            job.is_cancelled = True
            raise
        return StreamingResponse(
            _stream(job, answer, event, events),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    async def _count_tokens(self, request: Request, owner: str) -> Response:
        asked = parse(CountRequest, await self._body(request))
        self._require_model(asked.model)
        query = asked.query(owner, None, self.engine.sessions.policies)
        deadline = time.monotonic() + self._access.request_s
        job = await asyncio.to_thread(
            asked.job, self.engine.template, query, lambda event: None, deadline
        )
        try:
            counted = await asyncio.wrap_future(self.engine.count(job))
        except TemplateError as error:
            raise asked.own(error) from None
        return JSONResponse({"input_tokens": counted})

    def _require_model(self, name: str | None) -> None:
        if name not in (None, self.model) and not self._takes_any_model:
            raise RequestError(
                f"there is no model {name[:100]!r} here; this server has {self.model!r}, and "
                "answers to other names with --any-model",
                param="model",
                code="model_not_found",
                status=404,
            )

    # ---- everything else

    async def _health(self, request: Request, owner: str) -> Response:
        if not self.engine.is_alive:
            raise Stopping("the server is stopping")
        return JSONResponse({"status": "ok"})

    async def _show_metrics(self, request: Request, owner: str) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    async def _models(self, request: Request, owner: str) -> Response:
        return JSONResponse({"object": "list", "data": [self._description]})

    async def _one_model(self, request: Request, owner: str) -> Response:
        self._require_model(request.path_params["name"])
        return JSONResponse(self._description)

    @property
    def _description(self) -> Json:
        return {
            "id": self.model,
            "object": "model",
            "created": self._created,
            "owned_by": "agentkv",
            "max_model_len": self.engine.max_positions,
            "policies": [
                {"policy": each.policy, "budget": each.budget}
                for each in self.engine.sessions.policies
            ],
        }

    async def _http_error(self, request: Request, error: Exception) -> Response:
        """Answer for an unknown path or method."""
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.url.path[:200]}"
        message = f"there is no {what} here" if error.status_code == 404 else error.detail
        code = "not_found" if error.status_code == 404 else "method_not_allowed"
        known = RequestError(message, status=error.status_code, code=code)
        self._metrics.count("other", error.status_code)
        return JSONResponse(
            _error_form(request.url.path)(Failure.of(known)),
            error.status_code,
            headers=error.headers,
        )


async def _stream(
    job: EngineJob,
    answer: Answer,
    event: Event,
    events: "asyncio.Queue[Event]",
) -> AsyncIterator[bytes]:
    """Yield the server-sent events of an answer, from the engine's first event on."""
    try:
        for data in answer.first_events():
            yield data
        while isinstance(event, ReplyDelta):
            for data in answer.events(event):
                yield data
            event = await events.get()
        try:
            if isinstance(event, ReplyFailure):
                raise event.error
            await _check(job, answer, event)
        except Exception as error:
            yield answer.error_event(Failure.of(error))
            return
        for data in answer.last_events(event):
            yield data
    finally:
        job.is_cancelled = True


async def _check(job: EngineJob, answer: Answer, end: ReplyEnd) -> None:
    """Raise SchemaViolated if a complete reply does not follow its schema."""
    if end.reason == "length":
        return
    found = await asyncio.to_thread(job.check.violation, answer.text, answer.calls)
    if found is not None:
        raise SchemaViolated(f"{found}; ask again with another seed or a higher temperature")


@contextlib.asynccontextmanager
async def _leaving(request: Request) -> AsyncIterator["asyncio.Future[None]"]:
    """Yield a future that is done once the client has closed the connection."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.ensure_future(leave())
    try:
        yield gone
    finally:
        gone.cancel()


async def _next(events: "asyncio.Queue[Event]", gone: "asyncio.Future[None]") -> Event:
    """Return the next event. Raises ClientDisconnect if the client leaves before."""
    coming = asyncio.ensure_future(events.get())
    both: set[asyncio.Future[Any]] = {coming, gone}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if coming.done():
        return coming.result()
    coming.cancel()
    raise ClientDisconnect


def _error_form(path: str) -> ErrorForm:
    """Return the form of errors of the protocol that has a path."""
    return messages_error if f"{path}/".startswith(f"{_MESSAGES}/") else openai_error


def _error_headers(status: int) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": "1"} if status in (429, 503) else {}
