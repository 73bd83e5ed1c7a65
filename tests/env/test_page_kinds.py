"""Every kind of field and page of docs/page-kinds.md, played in one browser session."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentkv_env.actions import parse
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed
from agentkv_env.page import Page
from agentkv_env.serialize import serialize
from tests.env.conftest import Pages, Visit
from tests.env.kinds.kind import Done, Kind, Refused
from tests.env.kinds.table import kinds, table

DOCS = Path(__file__).parents[2] / "docs" / "page-kinds.md"
KINDS = kinds()


@pytest.fixture(scope="module")
def visit(browser: Browser, pages: Pages) -> Iterator[Visit]:
    hosts = [f"{name}.localhost:{pages.port}" for name in ("shop", "partner")]
    with browser.session(hosts=hosts, viewport=(800, 600)) as session:
        yield Visit(session, pages)


def lines_of(page: Page) -> list[str]:
    return [re.sub(r" \[\d+\]$", "", line) for line in serialize(page).text.splitlines()]


def target_of(page: Page, kind: Kind) -> int | None:
    found = [node.id for node in page.nodes if (node.role, node.name) == kind.target and node.id]
    assert len(found) <= 1, f"{kind.target} names several elements"
    return found[0] if found else None


@pytest.mark.browser
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=kind.name, marks=[pytest.mark.slow] * (number % 5 > 0))
        for number, kind in enumerate(KINDS)
    ],
)
def test_a_kind_of_page_is_read_and_acted_on_as_the_table_says(visit: Visit, kind: Kind) -> None:
    others = {path.removeprefix("/"): html for path, html in kind.pages.items()}
    page = visit.show(kind.html, **others)
    assert set(kind.reads) <= set(lines_of(page)), serialize(page).text
    if not kind.action:
        return
    action = parse(kind.action.format(id=target_of(page, kind)), strict=False)
    match kind.outcome:
        case Done(js, expected):
            visit.session.act(action)
            assert visit.session.page.evaluate(js) == expected
        case Refused(words):
            with pytest.raises(ActionFailed, match=re.escape(words)):
                visit.session.act(action)
        case None:
            visit.session.act(action)
    page = visit.session.observe()
    assert set(kind.read_after) <= set(lines_of(page)), serialize(page).text


def test_the_page_of_the_docs_has_the_table_of_these_kinds() -> None:
    written = DOCS.read_text(encoding="utf-8")
    assert table() in written, "write what `python -m tests.env.kinds` prints into the page"


def test_forty_kinds_or_more_of_six_libraries_or_more_have_names_of_their_own() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 40
    assert len({kind.toolkit for kind in KINDS}) >= 6
