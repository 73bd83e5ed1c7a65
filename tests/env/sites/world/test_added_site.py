"""A site outside the package, served beside the embedded ones."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites import World
from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region
from agentkv_env.sites.registry import SITES
from agentkv_env.sites.site import Site, database, form, render, see_other, site_content

HOME = """{% extends "base.html" %}{% block main %}
<h1>{{ content.owner }}'s garden</h1>
{% for plant in planted %}<p>{{ plant }}</p>{% endfor %}
{% endblock %}"""


@dataclass(frozen=True)
class Garden:
    owner: str
    first: str


def generate(names: Names, region: Region) -> Garden:
    return Garden(region.me.name, names.place())


def fill(region: Region, content: Garden, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO garden_plant VALUES (?)", (content.first,))


async def home(request: Request) -> Response:
    assert site_content(request, Garden).owner
    rows = database(request).execute("SELECT name FROM garden_plant").fetchall()
    return render(request, "home.html", planted=[row["name"] for row in rows])


async def plant(request: Request) -> Response:
    fields = await form(request)
    database(request).execute("INSERT INTO garden_plant VALUES (?)", (fields["name"],))
    return see_other("/")


@pytest.fixture
def garden(tmp_path: Path) -> Site[Garden]:
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "home.html").write_text(HOME)
    return Site(
        name="garden",
        placeholder="__GARDEN__",
        folder=tmp_path,
        generate=generate,
        routes=(Route("/", home), Route("/plant", plant, methods=["POST"])),
        schema="CREATE TABLE garden_plant (name TEXT NOT NULL);",
        fill=fill,
    )


def test_an_added_site_is_served_filled_and_reset(garden, serve_visitor) -> None:
    world = World(75, sites=(*SITES, garden))
    with serve_visitor(world) as visitor:
        page = visitor.get("http://garden.localhost/")
        assert f"{world.me.name}'s garden" in page.text
        assert world.content_of(garden).first in page.text
        assert visitor.get("http://garden.localhost/nothing").status == 404
        assert "Kale" in visitor.post("http://garden.localhost/plant", name="Kale").text
        visitor.server.reset()
        assert "Kale" not in visitor.get("http://garden.localhost/").text
        assert "garden.localhost" in visitor.server.hosts
        assert visitor.server.placeholders["__GARDEN__"] == "http://garden.localhost"


def test_an_added_site_leaves_the_embedded_sites_as_they_were(garden) -> None:
    alone, beside = World(75), World(75, sites=(*SITES, garden))
    assert beside.contents[:-1] == alone.contents
    assert beside.names > alone.names


def test_two_sites_of_one_name_are_refused(garden) -> None:
    with pytest.raises(ValueError, match="two sites have the same name"):
        World(75, sites=(garden, garden))


def test_a_world_without_a_site_says_so(garden) -> None:
    with pytest.raises(KeyError, match="no site 'garden'"):
        World(75).content_of(garden)
