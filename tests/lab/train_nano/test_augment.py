"""Tests for variants of an episode: goal, pages and replies change consistently."""

import random
import re

import pytest
from tokenizers import Tokenizer

from agentkv.dialog.prompt import PlainTemplate
from agentkv.dialog.reply import label
from agentkv_env.actions import extract, parse
from agentkv_env.page import Box, Node, Page
from agentkv_env.sites.names import side_of_name
from train_nano import reword as reword_module
from train_nano.annotate import annotate
from train_nano.augment import (
    drop_elements,
    keep_needed,
    renumber_elements,
    replace_codes,
    replace_names,
    replace_numbers,
    replace_seed,
    vary,
)
from train_nano.data import is_grounded, shorten
from train_nano.drills import Drills
from train_nano.episode import RecordedEpisode, RecordedTurn, encode, from_json, to_json
from train_nano.reword import reword
from train_nano.train import MODEL

BOX = Box(0, 0, 1, 1)
PERSON = "Calan Fenzanell"


def make_episode() -> RecordedEpisode:
    nodes = (
        Node("element", "heading", "Towns", BOX),
        Node("element", "link", PERSON, BOX, id=3),
        Node("text", "text", "by calanfenzanell, 1832", BOX),
        Node("element", "link", "Help", BOX, id=7),
        Node("element", "combobox", "Sort", BOX, id=8, value="Name", options=("Name", PERSON)),
    )
    page = Page("http://wiki.localhost/wiki/Calan_Fenzanell", PERSON, nodes)
    return RecordedEpisode(
        f"Open {PERSON} and say when.",
        (
            RecordedTurn(page, f"at {PERSON}\n```click [3]```"),
            RecordedTurn(page, "from by calanfenzanell, 1832\n```stop [1832]```"),
        ),
    )


def test_english_words_that_look_like_invented_ones_stay() -> None:
    page = Page("http://wiki.localhost/", "Bus Line 37", (Node("text", "text", "For sale", BOX),))
    episode = RecordedEpisode("Find Bus Line 37.", (RecordedTurn(page, "```stop [Pine]```"),))
    assert replace_names(episode, random.Random(1)) == episode


@pytest.mark.parametrize("seed", range(5))
def test_short_pages_keep_what_replies_need(seed: int) -> None:
    near = [
        Node("text", "text", "Bees", BOX),
        Node("element", "button", "Send", BOX, id=1),
        Node("text", "text", "Fees", BOX),
        Node("text", "text", "Price", BOX),
        Node("text", "text", "12,50", BOX),
        Node("text", "text", "Weight", BOX),
    ]
    far = [Node("element", "link", f"Help {i}", BOX, id=9 + i) for i in range(40)]
    page = Page("http://shop.localhost/", "Bees", (*far[:20], *near, *far[20:]))
    replies = ("button Send\n```click [1]```", "text\n```stop [12,50]```")
    episode = RecordedEpisode("Say what it costs.", tuple(RecordedTurn(page, r) for r in replies))
    varied = keep_needed(episode, random.Random(seed), share=0.9)
    first, second = (turn.page.nodes for turn in varied.turns)
    assert set(near[:3]) < set(first) and set(near[3:]) < set(second)
    assert len(first) < 20 and [turn.reply for turn in varied.turns] == list(replies)
    assert list(first) == [node for node in page.nodes if node in set(first)]


@pytest.mark.parametrize("seed", range(20))
def test_replies_of_a_variant_still_fit_their_pages(seed: int) -> None:
    rng = random.Random(seed)
    for episode in (make_episode(), Drills(seed).walk(15)):
        varied = vary(episode, rng)
        for turn in varied.turns:
            action = parse(extract(turn.reply))
            if action.element_id is not None:
                node = turn.page.element(action.element_id)
                assert node is not None
                assert turn.reply.startswith(f"at {label(node)}\n")


def test_a_name_is_replaced_everywhere_together_with_its_handle() -> None:
    varied = replace_names(make_episode(), random.Random(1))
    name = varied.turns[0].page.nodes[1].name
    assert name != PERSON
    assert name in varied.goal
    assert varied.turns[0].page.url.endswith(name.replace(" ", "_"))
    assert varied.turns[0].page.nodes[2].name.startswith(f"by {name.lower().replace(' ', '')},")
    assert varied.turns[0].page.nodes[4].options == ("Name", name)


def test_a_person_who_appears_only_by_handle_is_renamed_too() -> None:
    heading = Node("element", "heading", "calanfenzanell wrote", BOX)
    button = Node("element", "button", "Downvote calanfenzanell", BOX, id=4)
    reply = "at Downvote calanfenzanell\n```click [4]```"
    page = Page("http://forum.localhost/", "Thread", (heading, button))
    goal = "Downvote what calanfenzanell wrote."
    varied = replace_names(RecordedEpisode(goal, (RecordedTurn(page, reply),)), random.Random(1))
    handle = varied.goal.split()[2]
    assert handle != "calanfenzanell"
    assert varied.turns[0].page.nodes[0].name == f"{handle} wrote"
    assert varied.turns[0].reply.startswith(f"at Downvote {handle}\n")


def test_a_code_gets_new_letters_and_digits_consistently() -> None:
    line = Node("text", "text", "MODEL KC-567 not KC-566, CODE VORAR57", BOX)
    page = Page("http://shop.localhost/", "Label", (line,))
    reply = "from MODEL KC-567\n```stop [KC-567]```"
    varied = replace_codes(
        RecordedEpisode("Is it KC-567?", (RecordedTurn(page, reply),)), random.Random(1)
    )
    code = varied.goal[6:-1]
    assert re.fullmatch(r"[A-Z]{2}-\d{3}", code) and code != "KC-567"
    assert varied.turns[0].reply == f"from MODEL {code}\n```stop [{code}]```"
    name = varied.turns[0].page.nodes[0].name
    match = re.fullmatch(rf"MODEL {code} not (\S+), CODE (\S+)", name)
    assert match is not None and match[1] != code and re.fullmatch(r"[A-Z]{5}\d\d", match[2])


def test_common_words_are_swapped_consistently_in_every_case() -> None:
    nodes = (
        Node("element", "link", "Velmarix Calm Dog Leash", BOX, id=3),
        Node("text", "text", "dog leash, black | PETS: CODE AB-12", BOX),
        Node("element", "link", "Pets", BOX, id=5),
        Node("element", "button", "Add to cart", BOX, id=7),
    )
    page = Page("http://shop.localhost/category/pets", "Pets", nodes)
    reply = "at Velmarix Calm Dog Leash\n```click [3]```"
    goal = "Find the Velmarix Calm Dog Leash under Pets."
    seen = set()
    for seed in range(10):
        varied = reword(RecordedEpisode(goal, (RecordedTurn(page, reply),)), random.Random(seed))
        name, line, category, button = (node.name for node in varied.turns[0].page.nodes)
        assert varied.goal == f"Find the {name} under {category}."
        assert varied.turns[0].reply == f"at {name}\n```click [3]```"
        assert varied.turns[0].page.url.endswith(f"/{category.lower()}")
        maker, thing = name.split(" ", 2)[::2]
        assert maker == "Velmarix" and line.startswith(f"{thing.lower()}, ")
        assert f"{category.upper()}: CODE AB-12" in line and button == "Add to cart"
        seen.add(name)
    assert len(seen) > 5


def test_different_words_get_different_replacements() -> None:
    words = [word for kind in reword_module._KINDS for word in kind]
    page = Page("http://shop.localhost/", "", tuple(Node("text", "text", w, BOX) for w in words))
    varied = reword(
        RecordedEpisode("", (RecordedTurn(page, "done\n```stop []```"),)), random.Random(2)
    )
    names = [node.name.lower() for node in varied.turns[0].page.nodes]
    new = dict(zip(map(str.lower, words), names, strict=True))
    assert len(set(new.values())) == len(new)


@pytest.mark.parametrize("seed", range(20))
def test_a_full_name_of_the_training_side_stays_on_it(seed: int) -> None:
    assert side_of_name(PERSON) == 1
    assert side_of_name(replace_names(make_episode(), random.Random(seed)).turns[0].page.title) == 1


def test_an_answer_gets_new_digits_everywhere() -> None:
    changed = replace_numbers(make_episode(), random.Random(2))
    answer = parse(extract(changed.turns[1].reply)).answer
    assert re.fullmatch(r"[1-9]\d{3}", answer) and answer != "1832"
    assert changed.turns[1].page.nodes[2].name == f"by calanfenzanell, {answer}"
    assert changed.turns[1].reply.startswith(f"from by calanfenzanell, {answer}\n")
    assert changed.turns[0].reply == make_episode().turns[0].reply


def test_an_element_id_that_equals_a_replaced_value_is_unchanged() -> None:
    field = Node("element", "textbox", "Amount", BOX, id=78)
    page = Page("http://shop.localhost/", "Cart", (Node("text", "text", "Size | 78", BOX), field))
    reply = "at Amount\nfrom Size | 78\n```type [78] [78] [0]```"
    (turn,) = replace_numbers(
        RecordedEpisode("Type the size.", (RecordedTurn(page, reply),)), random.Random(1)
    ).turns
    action = parse(extract(turn.reply))
    assert action.element_id == 78 and action.text != "78"
    assert turn.page.nodes[0].name == f"Size | {action.text}"


def test_new_element_ids_increase_in_reading_order() -> None:
    page = renumber_elements(make_episode(), random.Random(0)).turns[0].page
    numbers = [node.id for node in page.nodes if node.id is not None]
    assert numbers == sorted(numbers) and len(set(numbers)) == 3


def test_dropping_elements_keeps_those_that_goal_and_replies_mention() -> None:
    filler = tuple(Node("element", "link", f"Filler {n}", BOX, id=100 + n) for n in range(30))
    episode = make_episode()
    page = episode.turns[0].page
    page = Page(page.url, page.title, (*filler, *page.nodes, *filler))
    episode = RecordedEpisode(
        episode.goal, tuple(RecordedTurn(page, turn.reply) for turn in episode.turns)
    )
    thinned = drop_elements(episode, random.Random(0), share=1.0).turns[0].page
    assert len(thinned.nodes) < 20
    assert {PERSON, "by calanfenzanell, 1832"} <= {node.name for node in thinned.nodes}


def test_a_shortened_episode_keeps_the_noted_page_and_the_last() -> None:
    template = PlainTemplate(Tokenizer.from_file(str(MODEL / "tokenizer.json")))
    page = Page("http://wiki.localhost/", "Main", (Node("element", "link", "Help", BOX, id=1),))
    first = RecordedTurn(page, "at Help\n```click [1]```")
    answer = RecordedTurn(page, "done\n```stop [1832]```")
    episode = RecordedEpisode(make_episode().goal, (first, *make_episode().turns, answer))

    def emptied(max_tokens: int) -> list[bool]:
        shorter = shorten(episode, random.Random(0), template, max_tokens=max_tokens, known={})
        assert [turn.counts for turn in shorter.turns] == [
            bool(turn.page.nodes) for turn in shorter.turns
        ]
        return [not turn.page.nodes for turn in shorter.turns]

    noted = [turn.reply.startswith("read ") for turn in annotate(episode).turns]
    assert sum(noted) == 1
    assert emptied(0) == [not noted for noted in noted[:-1]] + [False]
    length = len(encode(template, episode).ids)
    assert emptied(length) == [False] * len(noted)
    assert sum(emptied(length - 1)) == 1


def test_an_episode_is_grounded_if_its_answer_was_on_a_page_or_is_n_a() -> None:
    episode = make_episode()
    assert is_grounded(episode)
    pageless = [RecordedTurn(Page(turn.page.url, "", ()), turn.reply) for turn in episode.turns]
    assert not is_grounded(RecordedEpisode(episode.goal, tuple(pageless)))
    unsolved = RecordedTurn(episode.turns[0].page, "done\n```stop [N/A]```")
    assert is_grounded(RecordedEpisode(episode.goal, (unsolved,)))


def test_episodes_survive_a_round_trip_through_json() -> None:
    for episode in (make_episode(), Drills(0).walk(10)):
        assert from_json(to_json(episode)) == episode


def test_equal_generators_give_equal_variants() -> None:
    assert vary(make_episode(), random.Random(5)) == vary(make_episode(), random.Random(5))
    goals = {vary(make_episode(), random.Random(seed)).goal for seed in range(10)}
    assert len(goals) > 5 and all(re.match(r"Open \w+ \w+ and say when\.", goal) for goal in goals)


def make_miniwob_episode() -> RecordedEpisode:
    nodes = (
        Node("text", "text", "Select 22 with the slider and click the 2nd box.", BOX),
        Node("text", "text", "21", BOX),
        Node("element", "checkbox", "", BOX, id=1),
        Node("element", "checkbox", "", BOX, id=2),
    )
    page = Page("http://miniwob.localhost/task/form-sequence?seed=1000000-0", "Form", nodes)
    turn = RecordedTurn(page, "at checkbox\n```click [2]```")
    return RecordedEpisode(nodes[0].name, (turn,), "1000000/miniwob/form-sequence")


@pytest.mark.parametrize("seed", range(20))
def test_numbers_and_places_of_a_miniwob_page_stay(seed: int) -> None:
    episode = make_miniwob_episode()
    varied = vary(episode, random.Random(seed), thinned=1.0)
    assert varied.goal == episode.goal
    old, new = episode.turns[0].page.nodes, varied.turns[0].page.nodes
    assert [node.name for node in new] == [node.name for node in old]
    pressed = parse(extract(varied.turns[0].reply)).element_id
    assert pressed == new[3].id


def test_the_seed_in_the_address_of_a_miniwob_page_is_another() -> None:
    varied = replace_seed(make_miniwob_episode(), random.Random(0))
    assert re.search(r"seed=\d+-\d$", varied.turns[0].page.url)
    assert "1000000" not in varied.turns[0].page.url
