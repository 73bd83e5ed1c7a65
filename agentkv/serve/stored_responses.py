"""Answered requests that later requests may continue, in memory and of bounded size."""

import json
from dataclasses import dataclass, field
from typing import Any

from agentkv.serve.body import RequestError
from agentkv.serve.protocols.answer import Json

MAX_PER_OWNER = 10_000
"""Maximum number of an owner's responses (our choice)."""
MAX_NBYTES = 128 * 2**20
"""Maximum bytes of all responses (our choice)."""
_OVERHEAD = 512
"""Bytes of a response besides its JSON, about."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What one request brought, and what was answered; not what came before."""

    previous: str | None
    """Id of the response that it continues."""
    items: bytes
    """Items of the request, as JSON."""
    body: bytes
    """The answer, as JSON."""

    @classmethod
    def of(cls, items: list[Json], body: Json) -> "StoredResponse":
        """Return a response as it is stored, given the items of its request."""
        return cls(body["previous_response_id"], _json(items), _json(body))

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about."""
        return len(self.items) + len(self.body) + _OVERHEAD

    def asked(self) -> list[Json]:
        """Return the items of the request."""
        items: list[Json] = json.loads(self.items)
        return items

    def said(self) -> list[Json]:
        """Return the items of the answer."""
        items: list[Json] = json.loads(self.body)["output"]
        return items


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


@dataclass(slots=True)
class _Shelf:
    """Responses of one owner, the longest unused ones first."""

    responses: dict[str, StoredResponse] = field(default_factory=dict)
    nbytes: int = 0

    def take(self, id: str) -> StoredResponse:
        taken = self.responses.pop(id)
        self.nbytes -= taken.nbytes
        return taken

    def put(self, id: str, response: StoredResponse) -> None:
        self.responses[id] = response
        self.nbytes += response.nbytes

    def drop_oldest(self) -> None:
        self.take(next(iter(self.responses)))


class ResponseStore:
    """The responses of all owners, for one thread.

    A response that is continued counts as used, and so do those before it. The longest unused
    response of an owner leaves when the owner has too many. When all responses have too many bytes,
    the owner with the most bytes loses one.

    Args:
        max_per_owner: maximum number of an owner's responses.
        max_nbytes: maximum bytes of all responses.
    """

    def __init__(self, *, max_per_owner: int = MAX_PER_OWNER, max_nbytes: int = MAX_NBYTES) -> None:
        self.max_per_owner, self.max_nbytes = max_per_owner, max_nbytes
        self._shelves: dict[str, _Shelf] = {}

    def __len__(self) -> int:
        return sum(len(shelf.responses) for shelf in self._shelves.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all responses, about."""
        return sum(shelf.nbytes for shelf in self._shelves.values())

    def put(self, owner: str, id: str, response: StoredResponse) -> None:
        """Store a response; others leave for it."""
        shelf = self._shelves.setdefault(owner, _Shelf())
        shelf.put(id, response)
        while len(shelf.responses) > self.max_per_owner:
            shelf.drop_oldest()
        while self.nbytes > self.max_nbytes:
            max(self._shelves.values(), key=lambda each: each.nbytes).drop_oldest()

    def get(self, owner: str, id: str) -> StoredResponse:
        """Return a response of an owner.

        Raises:
            RequestError: this owner has none of this id.
        """
        found = self._find(owner, id)
        if found is None:
            raise RequestError(
                f"there is no response {id[:100]!r}", code="response_not_found", status=404
            )
        return found

    def delete(self, owner: str, id: str) -> None:
        """Forget a response; raises as `get` does. Those that continue it can no longer be
        continued."""
        self.get(owner, id)
        self._shelves[owner].take(id)

    def conversation(self, owner: str, id: str) -> list[StoredResponse]:
        """Return a response and all that it continues, oldest first.

        Raises:
            RequestError: one of them is not there.
        """
        links: dict[str, StoredResponse] = {}
        wanted: str | None = id
        while wanted is not None:
            found = self._find(owner, wanted)
            if found is None:
                needed = f", which {id[:100]!r} continues" if links else ""
                raise RequestError(
                    f"there is no response {wanted[:100]!r}{needed}; send the whole conversation "
                    "as input instead",
                    param="previous_response_id",
                    code="previous_response_not_found",
                    status=400,  # as OpenAI's
                )
            links[wanted], wanted = found, found.previous
        shelf = self._shelves[owner]
        for used in reversed(links):
            shelf.put(used, shelf.take(used))
        return [*reversed(links.values())]

    def _find(self, owner: str, id: str) -> StoredResponse | None:
        shelf = self._shelves.get(owner)
        return None if shelf is None else shelf.responses.get(id)
