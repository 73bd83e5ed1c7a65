"""What failed attempts at an episode leave on disk."""

from pathlib import Path

from agentkv_tasks.run.attempts import remove_attempts, set_aside


def test_a_failed_attempt_keeps_its_trace_and_screenshots_beside_the_others(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    for number in (1, 2):
        (traces / "000-full").mkdir(parents=True)
        (traces / "000-full" / "000.jpg").write_text(f"picture {number}")
        (traces / "000-full.jsonl").write_text(f"attempt {number}")
        kept = set_aside(tmp_path, "000-full", number=number)
        assert (tmp_path / kept).read_text() == f"attempt {number}"
        picture = (tmp_path / kept).with_suffix("") / "000.jpg"
        assert picture.read_text() == f"picture {number}"
    assert [path.name for path in traces.iterdir()] == ["earlier"]


def test_an_attempt_that_left_no_trace_is_no_error(tmp_path: Path) -> None:
    assert set_aside(tmp_path, "000-full", number=1) == ""


def test_only_attempts_at_the_same_episode_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "traces" / "earlier"
    (folder / "000-full-1").mkdir(parents=True)
    for name in ("000-full-1.jsonl", "000-full-2.jsonl", "001-full-1.jsonl"):
        (folder / name).touch()
    remove_attempts(tmp_path, "000-full")
    assert [path.name for path in folder.iterdir()] == ["001-full-1.jsonl"]
