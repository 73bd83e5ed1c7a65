"""The forum's private messages."""

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


def subjects(page):
    return re.findall(r'<a class="subject"[^>]*>([^<]*)<', page.html)


def test_the_inbox_lists_the_newest_first_and_marks_what_is_unread(forum):
    letters = forum.world.forum.letters
    page = forum.get("/inbox")
    newest = sorted(letters, key=lambda letter: letter.hours_ago)
    assert subjects(page) == [letter.subject for letter in newest]
    assert page.text.count(", new") == sum(not letter.is_read for letter in letters) == 2


def test_reading_a_message_shows_it_whole_and_takes_the_mark_away(forum):
    letters = forum.world.forum.letters
    for number, letter in enumerate(letters, 1):
        page = forum.get(f"/message/{number}")
        assert letter.body in page.text and letter.sender in page.text
    assert ", new" not in forum.get("/inbox").text
    assert forum.get("/message/99").status == 404


def test_an_answer_goes_to_the_sender_with_the_subject_kept(forum):
    letter = forum.world.forum.letters[0]
    form = forum.get("/message/1/reply")
    assert letter.body in form.text
    assert forum.post("/message/1/reply", body="").status == 422
    page = forum.post("/message/1/reply", body="I <will> come")
    assert page.path == "/sent"
    assert f"Re: {letter.subject} to {letter.sender}" in page.text
    sent = re.search(r'href="(/message/\d+)"', page.html)[1]
    assert "I &lt;will&gt; come" in forum.get(sent).html


def test_a_message_to_a_member_needs_subject_and_text_and_keeps_what_was_typed(forum):
    me, *others = [member.handle for member in forum.world.forum.members]
    path = f"/user/{others[4]}/message"
    refused = forum.post(path, subject="", body="kept words")
    assert refused.status == 422 and "Give the message a subject" in refused.text
    assert "kept words" in refused.html
    assert subjects(forum.post(path, subject="A walk", body="Tomorrow?")) == ["A walk"]
    assert forum.get(f"/user/{me}/message").status == 404
    assert forum.get("/user/nobody/message").status == 404


def test_a_deleted_message_is_gone(forum):
    letter = forum.world.forum.letters[2]
    assert letter.subject not in subjects(forum.post("/message/3/delete"))
    assert forum.get("/message/3").status == 404


def test_letters_and_offers_are_others_in_every_world():
    first, second = World(7), World(8)
    assert {x.body for x in first.forum.letters}.isdisjoint(x.body for x in second.forum.letters)
    assert first.classifieds.offers != second.classifieds.offers
