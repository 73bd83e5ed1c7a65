"""JSON interfaces that scoring asks over HTTP."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from agentkv_tasks.evaluate.strings import CannotScore

_MAX_BYTES = 16_000_000


class Refused(CannotScore):
    """The interface does not accept the key."""


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could take a key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask(url: str, body: object = None, *, key: str = "", timeout_s: float) -> Any:
    """Send a request, a POST if it has a body, and return the JSON of the answer.

    Args:
        key: sent as a bearer token; empty for none.

    Raises:
        Refused: the status is 401.
        CannotScore: nothing answers, with another status, or not with JSON.
    """
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.build_opener(_Stay).open(request, timeout=timeout_s) as answer:
            return json.loads(answer.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        error.close()
        kind = Refused if error.code == http.client.UNAUTHORIZED else CannotScore
        raise kind(f"{url} answers with status {error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        raise CannotScore(f"{url} does not answer: {error}") from None
    except (ValueError, RecursionError):
        raise CannotScore(f"{url} does not answer with JSON") from None
