"""The README's picture is drawn from the committed rows."""

from pathlib import Path

from agentkv_lab.picture import picture

ROOT = Path(__file__).parents[2]


def test_the_committed_picture_is_what_the_rows_give() -> None:
    assert (ROOT / "docs" / "success.svg").read_text(encoding="utf-8") == picture()


def test_every_policy_has_its_name_in_the_picture() -> None:
    drawn = picture()
    for name in ("full", "int4", "lookback-int8", "window", "conf-kv-l", "last page only"):
        assert f">{name}</text>" in drawn
