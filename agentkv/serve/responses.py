"""OpenAI's Responses on the server: conversations that requests continue, and the stored ones."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentkv.serve.body import RequestError
from agentkv.serve.protocols.answer import Json
from agentkv.serve.protocols.openai_requests import ChatRequest
from agentkv.serve.protocols.responses_answers import ResponsesAnswer
from agentkv.serve.protocols.responses_requests import ResponsesRequest
from agentkv.serve.stored_responses import ResponseStore, StoredResponse


class Responses:
    """Begins answers, and handles the addresses of stored responses."""

    def __init__(self) -> None:
        self.store = ResponseStore()
        """What later requests may continue."""

    def routes(self) -> list[tuple[str, list[str], Callable[[Request, str], Awaitable[Response]]]]:
        """Return the paths of stored responses, with their methods and handlers."""
        one = "/v1/responses/{response}"
        return [
            (one, ["GET"], self._retrieve),
            (one, ["DELETE"], self._delete),
            (f"{one}/input_items", ["GET"], self._list_items),
        ]

    async def begin(
        self, asked: ResponsesRequest, owner: str, model: str
    ) -> tuple[ChatRequest, ResponsesAnswer]:
        """Return a request as one of chats, and its answer, which is stored if it shall be.

        Raises:
            RequestError: the response that it continues is not there, or a parameter is wrong.
        """
        previous = asked.previous_response_id
        earlier = [] if previous is None else self.store.conversation(owner, previous)
        own = asked.items()

        def read() -> ChatRequest:  # a conversation may be long, and other requests go on meanwhile
            items = (each for link in earlier for each in (*link.asked(), *link.said()))
            return asked.chat(chain(items, own))

        chat = await asyncio.to_thread(read)
        keep = partial(self._keep, owner, own) if asked.store else _forget
        return chat, asked.answer(model, chat, keep)

    def _keep(self, owner: str, items: list[Json], body: Json) -> None:
        self.store.put(owner, body["id"], StoredResponse.of(items, body))

    async def _retrieve(self, request: Request, owner: str) -> Response:
        if request.query_params.get("stream", "false") != "false":
            raise RequestError("a stored response is not streamed", param="stream")
        found = self.store.get(owner, request.path_params["response"])
        return Response(found.body, media_type="application/json")

    async def _delete(self, request: Request, owner: str) -> Response:
        id = request.path_params["response"]
        self.store.delete(owner, id)
        return JSONResponse({"id": id, "object": "response", "deleted": True})

    async def _list_items(self, request: Request, owner: str) -> Response:
        asked = request.query_params
        items = self.store.get(owner, request.path_params["response"]).asked()
        order, limit = asked.get("order", "desc"), asked.get("limit", "20")
        if order not in ("asc", "desc"):
            raise RequestError("order is asc or desc", param="order")
        if not re.fullmatch("[1-9][0-9]?|100", limit):
            raise RequestError("limit is a number from 1 to 100", param="limit")
        if order == "desc":
            items.reverse()
        if (after := asked.get("after")) is not None:
            places = [number for number, item in enumerate(items) if item["id"] == after]
            if not places:
                raise RequestError(f"there is no item {after[:100]!r}", param="after", status=404)
            items = items[places[-1] + 1 :]
        shown = items[: int(limit)]
        ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {}
        more = len(items) > len(shown)
        return JSONResponse({"object": "list", "data": shown, "has_more": more, **ends})


def _forget(body: Json) -> None:
    """Keep nothing of a response."""
