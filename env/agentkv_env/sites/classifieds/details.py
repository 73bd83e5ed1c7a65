"""The second page of a new listing, and the same form for an existing listing."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.classifieds import account, store
from agentkv_env.sites.classifieds.facts import MEASURES, MOST, NEWEST_YEAR, OLDEST_YEAR
from agentkv_env.sites.classifieds.page import page
from agentkv_env.sites.site import database, form, see_other, whole_number

_FIRST_PAGE = "title category price town condition description delivery".split()


async def second_page(request: Request) -> Response:
    """Ask for details after a complete first page; publish the listing when they are valid."""
    fields = await form(request)
    wrong = account.what_is_wrong(request, fields)
    if wrong:
        return account.form_page(request, None, fields, wrong)
    if "publish" not in fields:
        return _details_page(request, None, fields["category"], fields, [])
    wrong = _wrong(fields["category"], fields)
    if wrong:
        return _details_page(request, None, fields["category"], fields, wrong)
    id = account.publish(request, fields)
    store.set_facts(database(request), id, _facts(fields["category"], fields))
    return see_other(f"/listing/{id}")


async def edit(request: Request) -> Response:
    """Show or change the details of a listing of the user."""
    fields = await form(request) if request.method == "POST" else {}
    row = account.own(request)
    if request.method == "GET":
        fields = store.facts(database(request), row["id"])
        for each in MEASURES[row["category"]]:
            fields[each.key] = fields.get(each.key, "").removesuffix(f" {each.unit}")
        return _details_page(request, row["id"], row["category"], fields, [])
    wrong = _wrong(row["category"], fields)
    if wrong:
        return _details_page(request, row["id"], row["category"], fields, wrong)
    store.set_facts(database(request), row["id"], _facts(row["category"], fields))
    return see_other(f"/listing/{row['id']}")


def _wrong(category: str, fields: dict[str, str]) -> list[str]:
    """Return messages about invalid details; all details are optional."""
    year = fields.get("Year")
    result = []
    if year and not OLDEST_YEAR <= whole_number(year, 0) <= NEWEST_YEAR:
        result.append(f"The year is {OLDEST_YEAR} to {NEWEST_YEAR}")
    for each in MEASURES[category]:
        given = fields.get(each.key)
        if given and not 1 <= whole_number(given, 0) <= MOST:
            result.append(f"Give the {each.key.lower()} as a whole number")
    return result


def _facts(category: str, fields: dict[str, str]) -> dict[str, str]:
    """Return the rows of the table for the given fields."""
    given = {key: fields[key] for key in ("Brand", "Year") if fields.get(key)}
    for each in MEASURES[category]:
        if fields.get(each.key):
            given[each.key] = each.value(whole_number(fields[each.key], 0))
    return given


def _details_page(
    request: Request, id: int | None, category: str, fields: dict[str, str], wrong: list[str]
) -> Response:
    return page(
        request,
        "details.html",
        id=id,
        fields=fields,
        first_page=[] if id else [(key, fields.get(key, "")) for key in _FIRST_PAGE],
        measures=MEASURES[category],
        wrong=wrong,
        status=422 if wrong else 200,
    )


ROUTES = (
    Route("/post/details", second_page, methods=["POST"]),
    Route("/listing/{id:int}/details", edit, methods=["GET", "POST"]),
)
