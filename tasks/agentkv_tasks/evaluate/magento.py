"""Orders and reviews of a Magento shop, which VisualWebArena's checks read from its REST interface.

Source: Magento's REST documentation (admin tokens, orders, product reviews). The agent never sees
the token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from agentkv_tasks.evaluate.interface import Refused, ask
from agentkv_tasks.evaluate.strings import CannotScore

_TIMEOUT_S = 20.0


@dataclass
class MagentoAdmin:
    """The admin interface of one shop; it asks for a token when it is first used.

    Args:
        address: address of the shop, without a final slash.
    """

    address: str
    name: str
    password: str = field(repr=False)
    _token: str = field(default="", init=False, repr=False)

    def latest_order_url(self) -> str:
        """Return the address of the page of the newest order.

        Raises:
            CannotScore: the interface refuses, or does not answer as Magento does.
        """
        query = {
            "searchCriteria[sortOrders][0][field]": "created_at",
            "searchCriteria[sortOrders][0][direction]": "DESC",
            "searchCriteria[pageSize]": "1",
        }
        answer = self._get(f"/rest/V1/orders?{urlencode(query)}")
        try:
            number = int(answer["items"][0]["increment_id"])
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._error("names no order") from None
        return f"{self.address}/sales/order/view/order_id/{number}/"

    def latest_review(self, sku: str) -> Mapping[str, Any]:
        """Return the newest review of a product; empty if there is none.

        Raises:
            CannotScore: the interface refuses, or does not answer as Magento does.
        """
        reviews = self._get(f"/rest/V1/products/{quote(sku, safe='')}/reviews")
        if not isinstance(reviews, list) or not all(isinstance(each, dict) for each in reviews):
            raise self._error("gives no list of reviews")
        return reviews[-1] if reviews else {}

    def _get(self, path: str) -> Any:
        try:
            if self._token:
                return self._send(path, None)
        except Refused:  # tokens expire after hours
            self._token = ""
        login = {"username": self.name, "password": self.password}
        token = self._send("/rest/default/V1/integration/admin/token", login)
        if not isinstance(token, str):
            raise self._error("gives no token")
        self._token = token
        return self._send(path, None)

    def _send(self, path: str, body: object) -> Any:
        return ask(self.address + path, body, key=self._token, timeout_s=_TIMEOUT_S)

    def _error(self, problem: str) -> CannotScore:
        return CannotScore(f"the admin interface of {self.address} {problem}")
