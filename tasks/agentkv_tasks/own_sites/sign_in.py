"""Log an account in to a site: by its form, in a browser, or from a file with a stored log-in."""

import contextlib
import json
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Error, Locator, Page, StorageState
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from pydantic import BaseModel, ConfigDict, ValidationError

from agentkv.files import read_private
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed
from agentkv_env.masking import Secrets
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.own_sites.schema import Login, Place

STEP_S = 10.0
"""Maximum seconds of each step of a log-in; a busy machine takes longer than an action may."""
FORM_S = 5.0
"""Maximum seconds until a script of a page has written the form, or what a log-in shows."""
_MAX_STATE_BYTES = 4_000_000


class SignInError(ValueError):
    """A log-in that did not work; the message says at which step, without the password."""


def sign_in(
    browser: Browser,
    login: Login,
    *,
    site: str,
    name: str,
    password: str,
    addresses: Addresses,
) -> StorageState:
    """Fill and send the form of a site, and return the cookies and storage of the log-in.

    The password is typed only on a page of the site itself.

    Args:
        site: address of the site, in public form.
        name: name of the account.

    Raises:
        SignInError: the page, a field or the button is missing, or the next page does not show
            that the account is logged in.
        BrowserGone: the browser died.
    """
    secrets = Secrets([password])
    with browser.session(
        hosts=addresses.hosts(site), addresses=dict(addresses.origins), dialogs="accept"
    ) as session:
        try:
            session.open(site + login.page)
            page = session.page
            with browser.watchdog.limit(5 * STEP_S):
                _fill(page, login, site=addresses.real(site), name=name, password=password)
                return page.context.storage_state()
        except SignInError as error:
            reason = str(error)
        except ActionFailed as error:
            reason = f"the log-in page: {error}"
        except Error as error:
            if not browser.is_alive:
                raise
            reason = error.message.partition("\n")[0]
    raise SignInError(secrets.mask(addresses.public(reason)))


def _fill(page: Page, login: Login, *, site: str, name: str, password: str) -> None:
    if not _is_below(page.url, site):
        raise SignInError(f"the log-in page leads to {page.url}, which is not on the site")
    shown = _find(page, login.shows, kind="text")
    if shown.count():
        raise SignInError(
            f"login.shows: {login.shows} is on the log-in page before anybody logs in; give a text "
            "that only pages after the log-in show"
        )
    fields = [
        _one(page, place, key=key, kind=kind)
        for key, place, kind in (
            ("name", login.name, "field"),
            ("password", login.password, "field"),
            ("button", login.button, "button"),
        )
    ]
    timeout = STEP_S * 1000
    fields[0].fill(name, timeout=timeout)
    if not _is_below(page.url, site):  # a script may have left the page since
        raise SignInError(f"the log-in page went on to {page.url}, which is not on the site")
    fields[1].fill(password, timeout=timeout)
    fields[2].click(timeout=timeout)
    try:
        shown.first.wait_for(timeout=timeout)
    except PlaywrightTimeout:
        raise SignInError(
            f"login.shows: {login.shows} did not appear after the log-in; the page is {page.url}"
        ) from None


def _find(page: Page, place: Place, *, kind: str) -> Locator:
    if place.selector:
        found = page.locator(place.selector)
    elif kind == "button":
        found = page.get_by_role("button", name=place.label, exact=True)
    elif kind == "field":
        found = page.get_by_label(place.label, exact=True)
    else:
        found = page.get_by_text(place.label)
    return found.filter(visible=True)


def _one(page: Page, place: Place, *, key: str, kind: str) -> Locator:
    found = _find(page, place, kind=kind)
    with contextlib.suppress(PlaywrightTimeout):  # a script may write the form
        found.first.wait_for(timeout=FORM_S * 1000)
    if (number := found.count()) != 1:
        raise SignInError(
            f"login.{key}: the log-in page has {number} visible {kind}s for {place}; expected one"
        )
    return found


def _is_below(url: str, site: str) -> bool:
    return _origin(url) == _origin(site)


def _origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of an address, whatever its spelling."""
    parts = urlsplit(url)
    standard = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", parts.port or standard


def shows_log_in(
    browser: Browser, login: Login, *, site: str, state: StorageState, addresses: Addresses
) -> bool:
    """Return True if the first page of a site shows that a stored log-in is valid.

    Args:
        site: address of the site, in public form.

    Raises:
        ActionFailed: the page did not load.
        BrowserGone: the browser died.
    """
    with browser.session(
        hosts=addresses.hosts(site),
        addresses=dict(addresses.origins),
        storage_state=state,
        dialogs="accept",
    ) as session:
        session.open(site)
        with browser.watchdog.limit(2 * STEP_S):
            try:
                shown = _find(session.page, login.shows, kind="text")
                shown.first.wait_for(timeout=FORM_S * 1000)
            except PlaywrightTimeout:
                return False
    return True


# ---- stored log-ins -------------------------------------------------------------------------


class _Cookie(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str
    value: str
    domain: str
    path: str


class _State(BaseModel):
    cookies: list[_Cookie] = []
    origins: list[dict[str, object]] = []


def read_storage_state(path: Path) -> StorageState:
    """Read a stored log-in, in the format of Playwright's `storage_state`.

    Raises:
        PrivateFileError: a ValueError; the file cannot be read, or others may read it.
        SignInError: the file is not in this format.
    """
    text = read_private(path, most_bytes=_MAX_STATE_BYTES)
    try:
        content = json.loads(text)
        _State.model_validate(content)
    except (ValidationError, ValueError, RecursionError):
        raise SignInError(
            f"{path}: expected Playwright's storage state, with cookies and origins"
        ) from None
    state: StorageState = content
    return state


def joined(states: list[StorageState]) -> StorageState:
    """Return one log-in that holds the cookies and storage of several."""
    return {
        "cookies": [cookie for state in states for cookie in state.get("cookies", [])],
        "origins": [origin for state in states for origin in state.get("origins", [])],
    }
