"""The pages of the home site: local news, and links to the other sites."""

import sqlite3
from datetime import timedelta
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.home.account import ROUTES as OWN_PAGES
from agentkv_env.sites.home.account import SCHEMA, is_going, setting
from agentkv_env.sites.home.content import HomeContent, generate, month_of
from agentkv_env.sites.images import poster
from agentkv_env.sites.region import Region
from agentkv_env.sites.site import Site, missing, paging, region, render, site_content, whole_number

NOTICES_ON_A_PAGE = 6
TOWNS_ON_A_PAGE = 6
EVENTS_ON_A_PAGE = 6
CONTACTS_ON_A_PAGE = 8


def content(request: Request) -> HomeContent:
    return site_content(request, HomeContent)


async def home(request: Request) -> Response:
    town = setting(request, "town")
    weather = next(each for each in content(request).weather if each.place == town)
    today = region(request).now.date()
    coming = next(each for each in content(request).events if each.day >= today)
    return render(
        request,
        "home.html",
        weather=weather,
        coming=coming,
        newest=content(request).notices[0],
        greeting=setting(request, "greeting"),
    )


async def notices(request: Request) -> Response:
    """List the notices that contain all words of the query; without a query, all notices."""
    words = request.query_params.get("q", "").lower().split()
    found = [
        each
        for each in content(request).notices
        if all(word in f"{each.subject} {each.text}".lower() for word in words)
    ]
    page = paging(len(found), page=request.query_params.get("page"), size=NOTICES_ON_A_PAGE)
    part = found[page.start : page.start + page.size]
    return render(request, "notices.html", notices=part, total=len(found), paging=page)


async def notice(request: Request) -> Response:
    number = request.path_params["id"]
    found = content(request).notices
    if not 1 <= number <= len(found):
        raise missing()
    return render(request, "notice.html", notice=found[number - 1])


async def weather(request: Request) -> Response:
    found = content(request).weather
    page = paging(len(found), page=request.query_params.get("page"), size=TOWNS_ON_A_PAGE)
    part = found[page.start : page.start + page.size]
    return render(request, "weather.html", towns=part, paging=page)


async def forecast(request: Request) -> Response:
    place = request.path_params["place"]
    found = [each for each in content(request).weather if each.place == place]
    if not found:
        raise missing()
    return render(request, "forecast.html", weather=found[0])


async def traffic(request: Request) -> Response:
    """Show the page of the traffic report, which loads the report itself."""
    return render(request, "traffic.html")


async def road_rows(request: Request) -> Response:
    return render(request, "roads.html", roads=content(request).roads)


async def events(request: Request) -> Response:
    """Show one month of the calendar; `month` counts from the current month."""
    present = region(request).now.date().replace(day=1)
    last = content(request).events[-1].day
    num_months = (last.year - present.year) * 12 + last.month - present.month
    ahead = whole_number(request.query_params.get("month"), 0, 0, num_months)
    shown = present
    for _ in range(ahead):
        shown = (shown + timedelta(days=32)).replace(day=1)
    found = month_of(content(request), shown.year, shown.month)
    page = paging(len(found), page=request.query_params.get("page"), size=EVENTS_ON_A_PAGE)
    part = found[page.start : page.start + page.size]
    return render(
        request, "events.html", events=part, total=len(found), shown=shown, paging=page,
        before=ahead - 1 if ahead else None, after=ahead + 1 if ahead < num_months else None,
    )  # fmt: skip


async def event(request: Request) -> Response:
    number = request.path_params["id"]
    found = content(request).events
    if not 1 <= number <= len(found):
        raise missing()
    shown = found[number - 1]
    is_past = shown.day < region(request).now.date()
    return render(
        request, "event.html", event=shown, is_past=is_past, going=is_going(request, number)
    )


async def contacts(request: Request) -> Response:
    """List people whose name, department or office contains all words of the query."""
    words = request.query_params.get("q", "").lower().split()
    found = [
        each
        for each in content(request).contacts
        if all(
            word in f"{each.person.name} {each.department} {each.office}".lower() for word in words
        )
    ]
    page = paging(len(found), page=request.query_params.get("page"), size=CONTACTS_ON_A_PAGE)
    part = found[page.start : page.start + page.size]
    return render(request, "contacts.html", contacts=part, total=len(found), paging=page)


async def contact(request: Request) -> Response:
    found = content(request).contact(request.path_params["handle"])
    if found is None:
        raise missing()
    return render(request, "contact.html", contact=found)


def _fill(region: Region, content: HomeContent, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO world VALUES (?, ?)", (region.seed, region.now.isoformat()))


ROUTES = (
    Route("/", home),
    Route("/notices", notices),
    Route("/notice/{id:int}", notice),
    Route("/weather", weather),
    Route("/weather/{place}", forecast),
    Route("/traffic", traffic),
    Route("/traffic/rows", road_rows),
    Route("/events", events),
    Route("/event/{id:int}", event),
    Route("/contacts", contacts),
    Route("/contact/{handle}", contact),
    *OWN_PAGES,
)


def _picture(region: Region, content: HomeContent, key: str) -> bytes | None:
    kind, _, number = key.partition("-")
    events = content.events
    if kind != "event" or not number.isdecimal() or not 1 <= int(number) <= len(events):
        return None
    shown = events[int(number) - 1]
    lines = ("COME ALONG", shown.hall.upper(), f"ENTRY {shown.entry} DOLLARS")
    return poster(lines, key=shown.title, width=350, height=210)


SITE = Site(
    name="home",
    placeholder="__HOMEPAGE__",
    folder=Path(__file__).parent,
    schema="CREATE TABLE world (seed INTEGER NOT NULL, now TEXT NOT NULL);" + SCHEMA,
    fill=_fill,
    generate=generate,
    routes=ROUTES,
    picture=_picture,
)
