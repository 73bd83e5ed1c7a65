"""Files of recordings: what is read back, continued and refused; replies in other formats."""

import json
import lzma
import re
from dataclasses import replace
from pathlib import Path

import pytest

from agentkv.dialog.reply import rewritten
from agentkv.dialog.reply_grammar import reply_grammar
from agentkv.recordings import (
    RecordedStep,
    Recording,
    RecordingError,
    RecordingFile,
    read_recordings,
)
from agentkv_env.page import Box, Cell, Node, Page
from agentkv_env.sites.names import FIRST_TRAINING_SEED

BOX = Box(10, 20, 30, 40)
PAGE = Page(
    "http://shop.localhost/",
    "Results",
    (
        Node("element", "link", "Blue Kayak", BOX, id=3, uses=("drag",)),
        Node("text", "text", "MODEL RN-563", BOX, cell=Cell(0, 1)),
        Node("element", "textbox", "Coupon code", BOX, id=5, value="x", states=("required",)),
        Node("element", "button", "", BOX, id=6),
    ),
    tabs=("Results", "Home"),
    pixels_below=300,
)
CLICK = RecordedStep(PAGE, "at Blue Kayak\n```click [3]```")
STOP = RecordedStep(PAGE, "from MODEL RN-563\n```stop [RN-563]```", "error: no such element")
EPISODE = Recording(
    "one", "Which model?", (replace(CLICK, counts=False), STOP), "vwa75", 3, FIRST_TRAINING_SEED
)


def written(path: Path, *episodes: Recording) -> Path:
    with RecordingFile(path) as file:
        for episode in episodes:
            file.append(episode)
    return path


def test_recordings_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    other = replace(EPISODE, key="two", world_seed=None, thoughts="free")
    path = written(tmp_path / "new" / "some.jsonl", EPISODE, other)
    assert list(read_recordings(path)) == [EPISODE, other]
    assert path.stat().st_mode & 0o77 == 0


def test_recordings_that_were_compressed_are_read_by_the_name_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "some.jsonl", EPISODE)
    (tmp_path / "some.jsonl.xz").write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()
    assert list(read_recordings(path)) == [EPISODE]
    (tmp_path / "some.jsonl.xz").write_bytes(b"no xz")
    with pytest.raises(RecordingError, match="not a complete xz file"):
        list(read_recordings(path))


def test_a_file_that_was_cut_off_is_continued_after_its_last_whole_line(tmp_path: Path) -> None:
    path = written(tmp_path / "some.jsonl", EPISODE, replace(EPISODE, key="two"))
    path.write_bytes(path.read_bytes()[:-40])
    with RecordingFile(path) as file:
        assert file.keys == {"one"}
        file.append(replace(EPISODE, key="three"))
    assert [each.key for each in read_recordings(path)] == ["one", "three"]


def lines(**changes: object) -> str:
    return json.dumps({**EPISODE.to_json(), **changes}) + "\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lines(version=2), "line 1: a recording of version 2, and this agentkv reads version 1"),
        (lines() + "[]\n", "line 2: no recording"),
        ("kayak\n", "line 1: not JSON"),
        ("[" * 100_000 + "\n", "line 1: not JSON"),
        ('{"version": 1, "key": "a", "goal": "b"}\n', "line 1: steps: "),
        (lines(world_seed=75), "recorded in world 75, and worlds below 1000000 evaluate models"),
        (lines(steps=[]), "none of its 0 replies counts"),
        (lines(steps=EPISODE.to_json()["steps"][:1]), "none of its 1 replies counts"),
    ],
)
def test_a_line_that_nothing_may_be_trained_on_is_named(
    content: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(content)
    with pytest.raises(RecordingError, match=re.escape(said)) as error:
        RecordingFile(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert path.read_text() == content


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="none.jsonl: cannot be read: No such file"):
        list(read_recordings(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("reply", "free", "named"),
    [
        (CLICK.reply, "'Blue Kayak' link\n```click [3]```", CLICK.reply),
        (STOP.reply, "MODEL RN-563\n```stop [RN-563]```", STOP.reply),
        ("x\n```stop []```", "done\n```stop []```", "done\n```stop []```"),
        ("x\n```scroll [down]```", "scroll\n```scroll [down]```", "scroll\n```scroll [down]```"),
        ("x\n```click [6]```", "'' button\n```click [6]```", "at button\n```click [6]```"),
        (
            "```type [5] [RN-563] [0]```",
            "'Coupon code' textbox\n```type [5] [RN-563] [0]```",
            "at Coupon code\nfrom MODEL RN-563\n```type [5] [RN-563] [0]```",
        ),
    ],
)
def test_replies_are_rewritten_as_each_kind_of_model_writes_them(
    reply: str, free: str, named: str
) -> None:
    assert rewritten(reply, "free", goal="Which model?", pages=[PAGE]) == free
    assert rewritten(reply, "named", goal="Which model?", pages=[PAGE]) == named


def test_what_a_chat_model_is_taught_is_what_its_grammar_admits() -> None:
    body = reply_grammar(PAGE, "Which model?", thoughts="free").partition("REPLY: /")[2]
    pattern = body.rpartition("/")[0].replace("\\/", "/")
    for reply in (CLICK.reply, STOP.reply, "```type [5] [RN-563] [0]```"):
        text = rewritten(reply, "free", goal="Which model?", pages=[PAGE])
        assert re.fullmatch(pattern, text), (pattern, text)
