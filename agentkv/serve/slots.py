"""The addresses of slots: lists sessions, shows what they hold, saves and changes them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast, get_args

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentkv.cache.misuse import Misuse
from agentkv.serve import page
from agentkv.serve.body import RequestError
from agentkv.serve.engine import Engine
from agentkv.serve.protocols.answer import Json
from agentkv.serve.protocols.openai_requests import Name, parse
from agentkv.serve.session import ServedSession
from agentkv.serve.session_files import RestoredFile
from agentkv.serve.sessions import SpanChange
from agentkv.serve.shown import MOST_TOKENS, NEWEST, HeldStream, messages_of


class _SlotBody(BaseModel):
    filename: str = ""
    label: str = ""
    session: Name | None = None


class Slots:
    """The handlers of `/slots`.

    Args:
        read_body: reads the body of a request; raises RequestError.
    """

    def __init__(self, engine: Engine, read_body: Callable[[Request], Awaitable[bytes]]) -> None:
        self._engine, self._body = engine, read_body

    def routes(
        self, *, show_text: bool
    ) -> list[tuple[str, list[str], Callable[[Request, str], Awaitable[Response]]]]:
        """Return the paths of slots with their methods and handlers.

        Args:
            show_text: include the paths that return the text of sessions.
        """
        routes: list[tuple[str, list[str], Callable[[Request, str], Awaitable[Response]]]] = [
            ("/slots", ["GET"], self._list),
            ("/slots/{slot}", ["POST"], self._change),
        ]
        if show_text:
            routes += [
                ("/slots/{slot}/tokens", ["GET"], self._tokens),
                ("/slots/{slot}/messages", ["GET"], self._messages),
            ]
        return routes

    async def _list(self, request: Request, owner: str) -> Response:
        sessions = self._engine.sessions
        listed = await self._look(lambda: [_described(s) for s in sessions.of(owner)])
        return JSONResponse(sorted(listed, key=lambda slot: slot["id"]))

    async def _tokens(self, request: Request, owner: str) -> Response:
        slot, sessions = _slot_of(request), self._engine.sessions
        try:
            newest = int(request.query_params.get("newest", NEWEST))
        except ValueError:
            newest = 0
        if not 1 <= newest <= MOST_TOKENS:
            raise RequestError(f"newest is a number from 1 to {MOST_TOKENS}", param="newest")

        def copy() -> HeldStream:
            session = sessions.at(owner, slot)
            sessions.bring(session)
            held = HeldStream.of(session, newest)
            sessions.make_room()
            return held

        held = await self._act(copy)
        # others are answered meanwhile: there may be many tokens
        shown = await asyncio.to_thread(held.shown, self._engine.template)
        return JSONResponse({"id_slot": slot, **shown}, headers=page.PRIVATE)

    async def _messages(self, request: Request, owner: str) -> Response:
        slot, sessions = _slot_of(request), self._engine.sessions
        history = await self._look(lambda: sessions.at(owner, slot).history)
        found = await asyncio.to_thread(messages_of, history)
        return JSONResponse({"id_slot": slot, "messages": found}, headers=page.PRIVATE)

    async def _change(self, request: Request, owner: str) -> Response:
        slot = _slot_of(request)
        sessions, action = self._engine.sessions, request.query_params.get("action", "")
        if action in get_args(SpanChange):
            return await self._change_span(request, owner, slot, cast(SpanChange, action))
        if action == "fork":
            return await self._fork(request, owner, slot)
        if action not in ("save", "restore", "erase"):
            raise RequestError(
                "action is save, restore, erase, fork, drop, pin or unpin", param="action"
            )
        name = ""
        if action != "erase":
            name = parse(_SlotBody, await self._body(request)).filename
            if not name:
                raise RequestError("filename is missing", param="filename")
        began = time.monotonic()

        def save() -> Json:
            num_ids, num_bytes = sessions.save(sessions.at(owner, slot), name)
            return {"filename": name, "n_saved": num_ids, "n_written": num_bytes}

        def restore(file: RestoredFile) -> Json:
            session = sessions.restore(owner, slot, file)
            return {"filename": name, "n_restored": session.num_ids, "n_read": file.num_bytes}

        def erase() -> Json:
            return {"n_erased": sessions.erase_slot(owner, slot)}

        if action == "restore":
            done = await asyncio.wrap_future(self._engine.restore(owner, name, restore))
        else:
            done = await self._act(save if action == "save" else erase)
        if action != "erase":
            done["timings"] = {f"{action}_ms": (time.monotonic() - began) * 1000}
        return JSONResponse({"id_slot": slot, **done})

    async def _fork(self, request: Request, owner: str, slot: int) -> Response:
        name, sessions = parse(_SlotBody, await self._body(request)).session, self._engine.sessions

        def fork() -> Json:
            made = sessions.fork(sessions.at(owner, slot), name)
            return {
                "id_slot": made.slot,
                "session": made.label,
                "forked_from": slot,
                "n_tokens": made.num_ids,
            }

        return JSONResponse(await self._act(fork))

    async def _change_span(
        self, request: Request, owner: str, slot: int, how: SpanChange
    ) -> Response:
        label, sessions = parse(_SlotBody, await self._body(request)).label, self._engine.sessions
        if not label:
            raise RequestError("label is missing", param="label")

        def change() -> int:
            return sessions.change_span(sessions.at(owner, slot), label, how)

        try:
            num_tokens = await self._act(change)
        except Misuse as error:
            raise RequestError(str(error), param="label") from None
        return JSONResponse({"id_slot": slot, "label": label, "n_tokens": num_tokens})

    async def _look(self, work: Callable[[], Any]) -> Any:
        """Let the engine's thread do what takes no time; a full queue hides no session."""
        return await asyncio.wrap_future(self._engine.call(work))

    async def _act(self, work: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._engine.act(work))


def _slot_of(request: Request) -> int:
    """Return the slot in a request's path. Raises RequestError if it is none."""
    try:
        slot = int(request.path_params["slot"])
    except ValueError:
        raise RequestError("a slot is a number", param="slot") from None
    if not 0 <= slot < 1_000_000:
        raise RequestError("a slot is a number from 0 to 999999", param="slot")
    return slot


def _described(session: ServedSession) -> Json:
    cache = session.cache
    return {
        "id": session.slot,
        "is_processing": session.is_busy,
        "session": session.label,
        "name": session.name,
        "policy": session.settings.policy,
        "budget": session.settings.budget,
        "n_tokens": session.num_ids,
        "in_memory": session.cache is not None,
        "bytes": session.nbytes,
        "hot_bytes": 0 if cache is None else cache.nbytes,
        "cold_bytes": 0 if cache is None else cache.cold_nbytes + cache.index_nbytes,
        "snapshot_bytes": session.nbytes - session.cache_nbytes,
        "snapshots": len(session.snapshots),
        "shared_bytes": 0 if cache is None else cache.shared_nbytes,
    }
