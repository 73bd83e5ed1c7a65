"""The wiki: the text of its articles, and facts that only pictures show."""

import pytest

from agentkv_env.sites.server import Server
from agentkv_env.sites.wiki.articles import CATEGORIES, articles
from agentkv_env.sites.world import World
from tests.env.sites.site_visitor import SiteVisitor


@pytest.fixture(scope="module")
def server():
    with Server(World(75)) as server:
        yield server


@pytest.fixture
def wiki(server):
    server.reset()
    return SiteVisitor(server, "wiki")


def test_every_link_of_every_article_leads_to_a_page(wiki):
    known = {article.slug for article in articles(wiki.world.wiki).values()}
    others = {"/", "/all", "/recent", "/random"} | {
        f"/category/{name.replace(' ', '_')}" for name in CATEGORIES
    }
    for slug in known:
        page = wiki.get(f"/wiki/{slug}")
        assert page.status == 200
        for link in {link.split("?")[0] for link in page.links} - others:
            _, kind, name, *annex = link.split("/")
            assert kind in ("wiki", "talk", "history", "links") and name in known
            assert not annex or wiki.get(link).status == 200


def test_a_town_names_its_mayor_and_the_mayor_has_a_birth_year(wiki):
    town = wiki.world.wiki.towns[0]
    page = wiki.get(f"/wiki/{town.name}")
    assert f"Mayor {town.mayor}" in page.text
    mayor = wiki.get("/wiki/" + town.mayor.replace(" ", "_"))
    assert f"Born {wiki.world.wiki.figure(town.mayor).born}" in mayor.text


def test_what_a_picture_says_stands_nowhere_in_the_articles(wiki):
    for article in articles(wiki.world.wiki).values():
        page = wiki.get(f"/wiki/{article.slug}")
        assert all(line.lower() not in page.text.lower() for line in article.picture.lines[1:])


def test_every_article_has_its_own_picture(wiki):
    pictures = {
        title: wiki.get(f"/image/{article.slug}.png").body
        for title, article in list(articles(wiki.world.wiki).items())[:30]
    }
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    assert len(set(pictures.values())) == len(pictures)


def test_search_puts_titles_before_texts(wiki):
    town = wiki.world.wiki.festivals[0].town
    start = town[:-1]
    links = [link for link in wiki.get(f"/search?q={start}").links if link.startswith("/wiki/")]
    by_title = [start.lower() in link.lower() for link in links]
    assert by_title[0] and not by_title[-1]
    assert by_title == sorted(by_title, reverse=True)


def test_search_for_a_title_leads_straight_to_the_article(wiki):
    figure = wiki.world.wiki.figures[0]
    page = wiki.get("/search?q=" + figure.name.lower().replace(" ", "++"))
    assert page.path == "/wiki/" + figure.name.replace(" ", "_")


def test_search_for_nothing_and_for_something_unknown_answers_in_words(wiki):
    assert "Type a word" in wiki.get("/search").text
    assert "0 articles found" in wiki.get("/search?q=zzzz").text


def test_the_random_article_depends_on_where_one_comes_from_only(wiki):
    slug = next(iter(articles(wiki.world.wiki).values())).slug
    first, again = wiki.get(f"/random?from={slug}"), wiki.get(f"/random?from={slug}")
    assert first.path == again.path != f"/wiki/{slug}"


def test_the_index_lists_every_article_once(wiki):
    known = articles(wiki.world.wiki)
    paths = [
        link
        for page in range(1, 20)
        for link in wiki.get(f"/all?page={page}").links
        if link.startswith("/wiki/")
    ]
    assert set(paths) == {f"/wiki/{article.slug}" for article in known.values()}


def test_an_unknown_article_is_the_sites_own_404(wiki):
    page = wiki.get("/wiki/Nowhere")
    assert page.status == 404 and "Page not found" in page.text
    assert wiki.get("/category/Ghosts").status == 404
    assert wiki.get("/image/Nowhere.png").status == 404


def test_dates_in_a_life_are_possible_in_many_worlds():
    for seed in (7, 75, 1_000_001, *range(20)):
        wiki = World(seed).wiki
        for maker in wiki.makers:
            assert 20 < maker.founded - wiki.figure(maker.founder).born < 90
        for landmark in wiki.landmarks:
            assert 20 < landmark.built - wiki.figure(landmark.architect).born < 110
        for dish in wiki.dishes:
            assert 18 < dish.year - wiki.figure(dish.cook).born < 110
