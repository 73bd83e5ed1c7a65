"""The forum: order of threads, nested comments, votes, subscriptions, the user's own page."""

import re

import pytest

from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from tests.env.sites.site_visitor import SiteVisitor


@pytest.fixture(scope="module")
def server():
    with Server(World(75)) as server:
        yield server


@pytest.fixture
def forum(server):
    server.reset()
    return SiteVisitor(server, "forum")


def shown(page):
    return re.findall(r'<a class="title" href="/thread/(\d+)"', page.html)


def points(page, selector="thread"):
    found = re.search(rf'id="{selector}.*?class="points">(-?\d+) points', page.html, re.DOTALL)
    return int(found[1])


def test_new_and_top_sort_all_threads_over_the_pages(forum):
    threads = forum.world.forum.threads
    for order, key in (("new", lambda t: t.minutes_ago), ("top", lambda t: -t.score)):
        pages = [forum.get(f"/?sort={order}&page={number}") for number in range(1, 9)]
        ids = [int(id) for page in pages for id in shown(page)]
        assert ids == [thread.id for thread in sorted(threads, key=key)]


def test_hot_is_the_default_and_differs_from_new_and_top(forum):
    hot = shown(forum.get("/"))
    assert hot == shown(forum.get("/?sort=hot")) == shown(forum.get("/?sort=nonsense"))
    assert hot not in (shown(forum.get("/?sort=new")), shown(forum.get("/?sort=top")))


def test_a_board_shows_its_own_threads(forum):
    ids = {str(thread.id) for thread in forum.world.forum.threads if thread.board == "music"}
    found = shown(forum.get("/board/music")) + shown(forum.get("/board/music?page=2"))
    assert set(found) == ids
    assert forum.get("/board/nothing").status == 404


def test_a_vote_counts_once_and_the_same_again_takes_it_back(forum):
    before = points(forum.get("/thread/3"))
    assert points(forum.post("/thread/3/vote", vote="up")) == before + 1
    assert points(forum.post("/thread/3/vote", vote="down")) == before - 1
    assert points(forum.post("/thread/3/vote", vote="down")) == before
    assert forum.post("/thread/3/vote", vote="sideways").status == 400


def test_a_comment_can_be_voted_on(forum):
    comment = forum.world.forum.threads[0].comments[0]
    page = forum.post(f"/comment/{comment.id}/vote", vote="up")
    assert points(page, f"comment-{comment.id}") == comment.score + 1


def test_a_reply_stands_right_below_what_it_answers_and_deeper(forum):
    comment = forum.world.forum.threads[0].comments[0]
    page = forum.post(f"/comment/{comment.id}/reply", body="I <i>agree</i>")
    ids = re.findall(r'id="comment-(\d+)"[^>]*margin-left: (\d+)rem', page.html)
    places = [int(id) for id, _ in ids]
    new = max(places)
    answers = [c.id for c in forum.world.forum.threads[0].comments if c.parent == comment.id]
    between = places[places.index(comment.id) + 1 : places.index(new)]
    assert set(between) <= set(answers)
    assert dict(ids)[str(new)] > dict(ids)[str(comment.id)]
    assert "I &lt;i&gt;agree" in page.html


def test_an_empty_comment_is_refused(forum):
    assert "Write a comment first" in forum.post("/thread/1/comment", body="  ").text
    comment = forum.world.forum.threads[0].comments[0]
    assert forum.post(f"/comment/{comment.id}/reply", body="").status == 422


def test_only_own_comments_can_be_deleted_and_answers_stay(forum):
    page = forum.post("/thread/1/comment", body="Mine")
    mine = max(int(id) for id in re.findall(r'id="comment-(\d+)"', page.html))
    forum.post(f"/comment/{mine}/reply", body="An answer to it")
    page = forum.post(f"/comment/{mine}/delete")
    assert "Mine" not in page.text and "An answer to it" in page.text
    foreign = forum.world.forum.threads[0].comments[0].id
    assert forum.post(f"/comment/{foreign}/delete").status == 403


def test_a_submitted_thread_is_the_newest_of_its_board(forum):
    page = forum.post("/submit", board="books", title="Bookends", body="Which?")
    assert "Bookends" in page.text and points(page) == 1
    assert page.path == f"/thread/{shown(forum.get('/board/books?sort=new'))[0]}"
    assert "Bookends" in forum.get(f"/user/{forum.world.me.handle}").text
    refused = forum.post("/submit", board="books", title="", body="kept words")
    assert refused.status == 422 and "kept words" in refused.text


def test_subscribing_is_undone_by_doing_it_again(forum):
    name = next(
        b.name for b in forum.world.forum.boards if b.name not in forum.world.forum.subscribed
    )
    row = rf'id="board-{name}".*?class="state">(\w*)<'

    def state():
        return re.search(row, forum.get("/boards").html, re.DOTALL)[1]

    assert state() == ""
    assert "Unsubscribe" in forum.post(f"/board/{name}/subscribe").text
    assert state() == "subscribed"
    forum.post(f"/board/{name}/subscribe")
    assert state() == ""


def test_a_changed_bio_is_on_the_users_page_and_in_the_form(forum):
    page = forum.post("/settings", bio="I like <maps>")
    assert page.path == f"/user/{forum.world.me.handle}"
    assert "I like &lt;maps&gt;" in page.html
    assert "I like &lt;maps&gt;" in forum.get("/settings").html


def test_what_a_poster_says_stands_nowhere_in_the_page(forum):
    posters = [thread for thread in forum.world.forum.threads if thread.poster]
    assert len(posters) >= 12
    for thread in posters:
        page = forum.get(f"/thread/{thread.id}")
        assert all(fact not in page.text.upper() for fact in thread.poster.lines[1:])
        assert forum.get(f"/image/poster-{thread.id}.png").body.startswith(b"\x89PNG")


def test_every_members_page_and_every_thread_resolves(forum):
    for member in forum.world.forum.members:
        assert member.bio in forum.get(f"/user/{member.handle}").text
    for thread in forum.world.forum.threads:
        assert thread.title in forum.get(f"/thread/{thread.id}").text


def test_search_finds_titles_by_all_their_words(forum):
    title = forum.world.forum.threads[0].title
    page = forum.get("/search?q=" + "+".join(reversed(title.split())))
    assert "1" in shown(page)
    assert shown(forum.get("/search?q=zzzz")) == []
    assert "Type a word" in forum.get("/search").text
