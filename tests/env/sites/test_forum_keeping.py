"""The forum: saved threads, pages of boards and members, and later changes."""

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


@pytest.fixture
def threads(forum):
    return forum.world.forum.threads


def shown(page):
    return [int(id) for id in re.findall(r'<a class="title" href="/thread/(\d+)"', page.html)]


def over_pages(forum, path):
    return [id for number in range(1, 9) for id in shown(forum.get(f"{path}page={number}"))]


def row(page, key):
    return re.search(rf'<th scope="row">{key}</th><td[^>]*>(.*?)</td>', page.html)[1]


def own_comment(forum):
    me = forum.world.me.handle
    return next(c for t in forum.world.forum.threads for c in t.comments if c.author == me)


def test_subscribed_shows_the_threads_of_the_user_s_boards(forum, threads):
    boards = forum.world.forum.subscribed
    found = set(over_pages(forum, "/subscribed?"))
    assert found == {t.id for t in threads if t.board in boards}
    forum.post(f"/board/{boards[0]}/subscribe")
    found = set(over_pages(forum, "/subscribed?"))
    assert found == {t.id for t in threads if t.board in boards[1:]}


def test_saving_a_thread_twice_forgets_it_again(forum):
    saved = set(forum.world.forum.saved)
    assert set(shown(forum.get("/saved"))) == saved
    other = next(id for id in range(1, 9) if id not in saved)
    assert "Forget thread" in forum.post(f"/thread/{other}/save").text
    assert set(shown(forum.get("/saved"))) == saved | {other}
    assert "Save thread" in forum.post(f"/thread/{other}/save").text
    assert set(shown(forum.get("/saved"))) == saved


def test_a_board_is_described_in_figures_and_by_its_rules(forum, threads):
    for charter in forum.world.forum.charters:
        page = forum.get(f"/board/{charter.board}/about")
        inside = [t for t in threads if t.board == charter.board]
        assert row(page, "Readers") == str(charter.readers)
        assert row(page, "Founded") == str(charter.founded)
        assert row(page, "Threads") == str(len(inside))
        assert row(page, "Comments") == str(sum(len(t.comments) for t in inside))
        assert all(f"Rule {n}: {rule}" in page.text for n, rule in enumerate(charter.rules, 1))
        assert all(f"/user/{handle}" in page.links for handle in charter.moderators)
    assert forum.get("/board/nothing/about").status == 404


def test_a_board_can_be_filtered_by_flair(forum, threads):
    one = threads[0]
    found = shown(forum.get(f"/board/{one.board}?flair={one.extras.flair}"))
    expected = {t.id for t in threads if (t.board, t.extras.flair) == (one.board, one.extras.flair)}
    assert set(found) == expected


def test_comments_can_be_sorted_by_age_and_by_points(forum, threads):
    for thread in threads[:8]:
        top = [c for c in thread.comments if c.parent is None]
        keys = {
            "best": lambda c: -c.score,
            "newest": lambda c: c.minutes_ago,
            "oldest": lambda c: -c.minutes_ago,
        }
        for order, key in keys.items():
            page = forum.get(f"/thread/{thread.id}?comments={order}")
            ids = re.findall(r'id="comment-(\d+)" class="comment" data-parent=""', page.html)
            by_key = [(key(c), c.id) for c in top]
            assert [key(c) for id in ids for c in top if c.id == int(id)] == [
                value for value, _ in sorted(by_key)
            ]


def test_a_vote_in_a_poll_shows_the_results_and_can_be_taken_back(forum, threads):
    thread = next(t for t in threads if t.extras.poll)
    poll = thread.extras.poll
    page = forum.get(f"/thread/{thread.id}")
    assert poll.question in page.text and "votes" not in page.text
    results = forum.get(f"/thread/{thread.id}?results=1")
    assert all(
        row(results, a) == f"{v} votes" for a, v in zip(poll.answers, poll.votes, strict=True)
    )
    value = re.search(rf'value="(\d+)"> {poll.answers[2]}<', page.html)[1]
    page = forum.post(f"/thread/{thread.id}/poll", answer=value)
    assert row(page, poll.answers[2]) == f"{poll.votes[2] + 1} votes, your choice"
    assert row(page, poll.answers[0]) == f"{poll.votes[0]} votes"
    page = forum.post(f"/thread/{thread.id}/poll", take_back="yes")
    assert "votes" not in page.text
    assert "Choose an answer first" in forum.post(f"/thread/{thread.id}/poll", answer=0).text


def test_what_a_spoiler_hides_is_inside_a_closed_part_of_the_page(forum, threads):
    hiding = [t for t in threads if t.extras.spoiler]
    assert len(hiding) == 8
    for thread in hiding:
        page = forum.get(f"/thread/{thread.id}")
        closed = re.search(r"<details><summary>Show spoiler</summary>(.*?)</details>", page.html)
        assert thread.extras.spoiler in closed[1]


def test_a_member_s_page_counts_what_they_wrote(forum, threads):
    member = forum.world.forum.members[3]
    page = forum.get(f"/user/{member.handle}")
    said = [c for t in threads for c in t.comments if c.author == member.handle]
    begun = [t for t in threads if t.author == member.handle]
    assert row(page, "Flair") == member.flair
    assert row(page, "Threads") == str(len(begun))
    assert row(page, "Comments") == str(len(said))
    assert row(page, "Points") == str(sum(x.score for x in (*said, *begun)))
    assert f"{len(said)} comments" in forum.get(f"/user/{member.handle}/comments").text


def test_an_own_comment_can_be_changed_and_is_marked(forum):
    comment = own_comment(forum)
    path = f"/comment/{comment.id}/edit"
    assert comment.body in forum.get(path).text
    assert forum.post(path, body=" ").status == 422
    page = forum.post(path, body="On <second> thought")
    assert "On &lt;second&gt; thought" in page.html and "edited" in page.text
    other = next(c for t in forum.world.forum.threads for c in t.comments if c.id != comment.id)
    assert forum.post(f"/comment/{other.id}/edit", body="x").status == 403


def test_an_own_thread_can_be_changed(forum):
    page = forum.post("/submit", board="books", title="Bookends", body="Which?", flair="Question")
    assert "Question" in page.text and "Edit thread" in page.text
    page = forum.post(f"{page.path}/edit", body="Those.", flair="Story")
    assert "Those." in page.text and "Story" in page.text and "Which?" not in page.text
    assert forum.post("/thread/1/edit", body="x").status == 403


def test_settings_change_the_flair_and_leave_what_is_not_given(forum):
    me = forum.world.me.handle
    before = row(forum.get(f"/user/{me}"), "Flair")
    other = "Singer" if before != "Singer" else "Reader"
    assert row(forum.post("/settings", bio="Hello"), "Flair") == before
    assert row(forum.post("/settings", bio="Hello", flair=other), "Flair") == other
