"""The wiki beyond its articles: other names, search, and pages about articles."""

import io

import pytest
from PIL import Image

from agentkv_env.ocr import Ocr
from agentkv_env.sites.server import Server
from agentkv_env.sites.wiki.articles import articles, draw
from agentkv_env.sites.wiki.lookup import linked_from, search, shared_names
from agentkv_env.sites.wiki.past import recent, remarks, revisions
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


def slug(title):
    return title.replace(" ", "_")


def test_a_museum_says_when_it_is_open_and_only_its_ticket_what_it_costs(wiki):
    museum = wiki.world.wiki.public.museums[0]
    page = wiki.get(f"/wiki/{slug(museum.name)}")
    for day, hours in museum.hours:
        assert f"{day} {hours}" in page.text
    assert any(hours == "closed" for _, hours in museum.hours)
    assert f"{museum.ticket} dollars" not in page.text.lower()
    assert f"PRICE {museum.ticket} DOLLARS" in articles(wiki.world.wiki)[museum.name].picture.lines


def test_what_the_new_pictures_say_can_be_read(wiki):
    content = wiki.world.wiki
    public = content.public
    titles = [group[0].name for group in (public.schools, public.bridges, public.museums,
                                          public.lines, public.clubs)]  # fmt: skip
    titles += [figure.name for figure in content.figures[:3]]
    shown = {title: articles(content)[title] for title in titles}
    read = Ocr().read(
        {title: Image.open(io.BytesIO(draw(each))).convert("RGB") for title, each in shown.items()}
    )
    for title, each in shown.items():
        assert each.picture.lines[-1] in [line.text for line in read[title]]


def test_a_bus_line_has_its_departures_on_a_page_of_its_own(wiki):
    line = wiki.world.wiki.public.lines[0]
    page = wiki.get(f"/wiki/{slug(line.name)}")
    assert f"{line.stops[1]} {line.departures[1][0]} {line.departures[1][-1]}" in page.text
    assert line.departures[1][1] not in page.text
    full = wiki.get(f"/wiki/{slug(line.name)}/Timetable")
    assert f"{line.stops[1]} {' '.join(line.departures[1])}" in full.text


def test_results_of_a_club_are_paged_and_hold_every_season(wiki):
    club = wiki.world.wiki.public.clubs[0]
    address = f"/wiki/{slug(club.name)}/Results_by_year"
    text = " ".join(wiki.get(f"{address}?page={page}").text for page in (1, 2, 3))
    for season in club.seasons:
        assert f"{season.year} {season.place} {season.points}" in text
    assert "Page 1 of 3" in text
    assert str(club.seasons[-1].year) not in wiki.get(address).text
    assert wiki.get(f"/wiki/{slug(club.name)}/Players").status == 404
    assert wiki.get("/wiki/Nowhere/Results_by_year").status == 404


def test_contents_lead_to_the_headings_of_a_long_article_only(wiki):
    towns = [articles(wiki.world.wiki)[town.name] for town in wiki.world.wiki.towns]
    for town in towns:
        page = wiki.get(f"/wiki/{town.slug}")
        assert ('aria-label="Contents"' in page.html) == (len(town.headings) > 2)
        for heading in town.headings:
            assert f'id="{slug(heading)}"' in page.html


def test_a_former_name_leads_to_the_town(wiki):
    town = wiki.world.wiki.towns[0]
    page = wiki.get(f"/wiki/{town.former}")
    assert f"Redirected from {town.former}" in page.text and f"Mayor {town.mayor}" in page.text
    assert wiki.get(f"/search?q={town.former.lower()}").path == f"/wiki/{town.former}"
    assert "Redirected" not in wiki.get(f"/wiki/{town.name}").text


@pytest.mark.parametrize("seed", [7, 75, 4711, 1_000_001])
def test_every_world_has_names_that_several_towns_share(seed):
    assert shared_names(World(seed).wiki)


def test_a_shared_name_lists_what_may_be_meant(wiki):
    for name, meant in shared_names(wiki.world.wiki).items():
        page = wiki.get("/search?q=" + name.replace(" ", "+"))
        assert page.path == f"/wiki/{slug(name)}"
        assert len(meant) > 1 and all(f"/wiki/{each.slug}" in page.links for each in meant)


def test_what_links_here_names_every_article_that_does(wiki):
    town = wiki.world.wiki.towns[0]
    mentioning = linked_from(wiki.world.wiki)[town.name]
    pages = [wiki.get(f"/links/{town.name}?page={page}") for page in range(1, 9)]
    links = {link for page in pages for link in page.links}
    assert {f"/wiki/{each.slug}" for each in mentioning} <= links
    assert f"/wiki/{slug(town.mayor)}" not in links or any(
        each.title == town.mayor for each in mentioning
    )
    assert f"{len(mentioning)} article" in pages[0].text


def test_history_lists_changes_with_day_author_and_summary(wiki):
    article = next(iter(articles(wiki.world.wiki).values()))
    changes = revisions(wiki.world.region, article)
    assert [change.number for change in changes] == list(range(len(changes), 0, -1))
    assert [change.day for change in changes] == sorted((c.day for c in changes), reverse=True)
    assert changes[0].day < wiki.world.now.date()
    page = wiki.get(f"/history/{article.slug}")
    assert f"{changes[0].author.handle} {changes[0].summary}" in page.text
    assert changes[-1].summary == "New page"


def test_recent_changes_can_be_narrowed_to_a_week(wiki):
    newest = recent(wiki.world.region, wiki.world.wiki)
    assert newest[0].title in wiki.get("/recent").text
    week = [each for each in newest if (wiki.world.now.date() - each.day).days <= 7]
    assert f"{len(week)} articles changed" in wiki.get("/recent?days=7").text
    assert f"{len(newest)} articles changed" in wiki.get("/recent?days=x").text


def test_a_comment_stays_on_the_talk_page_until_a_reset(wiki, server):
    article = next(iter(articles(wiki.world.wiki).values()))
    address = f"/talk/{article.slug}"
    assert all(
        remark.body in wiki.get(address).text for remark in remarks(wiki.world.region, article)
    )
    page = wiki.post(address, comment="Counted & found <b>right</b>")
    assert page.path == address and "Counted & found <b>right</b>" in page.text + "<b>"
    assert "&lt;b&gt;right" in page.html
    refused = wiki.post(address, comment=" ")
    assert refused.status == 422 and "Write a comment first." in refused.text
    server.reset()
    assert "Counted" not in wiki.get(address).text
    assert wiki.get("/talk/Nowhere").status == 404


def test_search_ranks_titles_by_their_words_and_says_the_category(wiki):
    town = wiki.world.wiki.public.museums[0].town
    found = search(wiki.world.wiki, f"{town} Museum").articles
    assert found[0].title.startswith(town) and found[0].title.endswith("Museum")
    page = wiki.get(f"/search?q={town}+Museum")
    assert f"{found[0].title} in {found[0].category}" in page.text
    assert f"{len(found)} article" in page.text


def test_a_word_that_nothing_has_does_not_hide_what_has_the_others(wiki):
    museum = wiki.world.wiki.public.museums[0].name
    assert search(wiki.world.wiki, f"{museum} zzzz").articles[0].title == museum


def test_a_misspelt_title_is_guessed(wiki):
    figure = wiki.world.wiki.figures[0].name
    page = wiki.get("/search?q=" + figure.replace(" ", "")[:-1] + "x")
    assert f"Did you mean {figure}" in page.text and f"/wiki/{slug(figure)}" in page.links


def test_categories_are_paged(wiki):
    people = wiki.get("/category/People")
    assert "Page 1 of" in people.text
    assert len([link for link in people.links if link.startswith("/wiki/")]) == 8
