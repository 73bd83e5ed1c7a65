"""Policies are paired by contexts, and drawn over their bytes."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentkv_lab import questions
from agentkv_tasks.bench.calls.rows import CallsRow
from agentkv_tasks.bench.ruler.rows import RulerRow

NOTHING = {
    "settings": {}, "versions": {}, "device": "a machine", "commit": "1", "parameters": {},
    "model": "nano", "weights": "", "seed": 0, "source": "", "prompts_sha256": "", "expected": [],
    "replies": [], "context_tokens": 0.0, "peak_bytes": 0, "cold_peak_bytes": 0, "index_bytes": 0.0,
    "all_peak_bytes": 0, "look_share": 0.0, "reply_tokens": 1.0, "read_seconds": 0.0,
    "reply_seconds": 0.0,
}  # fmt: skip


def row(label: str, task: str, scores: list[list[float]], *, hot: int = 1, cold: int = 0):
    flat = [score for own in scores for score in own]
    return RulerRow(
        label=label, task=task, mode="requests", length=2048, num_samples=len(scores),
        score=sum(flat) / len(flat), scores=scores, mean_bytes=hot * 2**20,
        cold_bytes=cold * 2**20, all_bytes=(hot + cold) * 2**20, **NOTHING,
    )  # fmt: skip


ROWS = [
    *(row("full", task, [[1.0, 1.0]] * 6, hot=40) for task in ("single", "multi-key")),
    row("full", "variables", [[0.5]] * 6, hot=40),
    *(row("ours", task, [[1.0, 1.0]] * 6, hot=10, cold=20) for task in ("single", "multi-key")),
    row("ours", "variables", [[0.0]] * 6, hot=10, cold=20),
    row("window", "single", [[0.0, 0.5]] * 6, hot=12),
    row("window", "multi-key", [[0.0, 0.0]] * 5 + [[1.0, 1.0]], hot=12),
    row("window", "variables", [[1.0]] * 6, hot=12),
]


def test_a_policy_is_paired_with_every_other_one_on_the_tasks_that_decide():
    full, window = questions.pairs(ROWS, "ours", 2048)
    assert (full.label, full.difference, full.won, full.lost, full.p_value) == ("full", 0, 0, 0, 1)
    assert (window.label, window.won, window.lost, window.num_contexts) == ("window", 11, 0, 12)
    assert window.difference == pytest.approx((6 * 0.75 + 5 * 1.0) / 12)
    assert window.p_value == pytest.approx(2 * 2 / 2**11)  # of two tests; all signs agree


def test_rows_that_decide_nothing_or_lack_the_policy_are_refused():
    with pytest.raises(ValueError, match="at 4096 tokens the full cache solves no task"):
        questions.pairs(ROWS, "ours", 4096)
    with pytest.raises(ValueError, match="'theirs' has no rows at 2048 tokens"):
        questions.pairs(ROWS, "theirs", 2048)


def test_rows_that_cannot_be_paired_are_refused(tmp_path: Path):
    file, other = tmp_path / "rows.jsonl", tmp_path / "other.jsonl"
    file.write_text("".join(each.to_json() + "\n" for each in ROWS))
    other.write_text(replace(ROWS[0], label="theirs", prompts_sha256="2").to_json() + "\n")
    with pytest.raises(ValueError, match="rows of single at 2048 tokens have other contexts"):
        questions.read([file, other])
    with pytest.raises(ValueError, match="'theirs' lacks tasks or contexts of 'ours'"):
        questions.pairs([*ROWS, replace(ROWS[0], label="theirs")], "ours", 2048)


def test_files_of_several_seeds_are_taken_together(tmp_path: Path):
    first, second = tmp_path / "0.jsonl", tmp_path / "1.jsonl"
    others = [
        replace(row("full", "single", [[1.0], [0.0]], hot=40), seed=1, prompts_sha256="2"),
        replace(row("ours", "single", [[0.0], [0.0]], hot=14), seed=1, prompts_sha256="2"),
    ]
    first.write_text("".join(each.to_json() + "\n" for each in (ROWS[0], ROWS[3])))
    second.write_text("".join(each.to_json() + "\n" for each in others))
    rows = questions.read([second, first])
    assert [(each.num_samples, len(each.scores)) for each in rows] == [(8, 8), (8, 8)]
    assert [each.score for each in rows] == [pytest.approx(7 / 8), pytest.approx(6 / 8)]
    assert rows[1].mean_bytes == pytest.approx((6 * 10 + 2 * 14) / 8 * 2**20)
    [full] = questions.pairs(rows, "ours", 2048)
    assert (full.num_contexts, full.won, full.lost) == (8, 0, 1)
    assert questions.read([first, second, first]) == [rows[0], rows[1]]
    differing = tmp_path / "differing.jsonl"
    differing.write_text(row("ours", "single", [[0.0, 1.0]] * 6).to_json() + "\n")
    with pytest.raises(ValueError, match="'ours' has two rows of single .* whose scores differ"):
        questions.read([first, differing])
    second.write_text(others[0].to_json() + "\n")
    assert [each.label for each in questions.read([first, second])] == ["full"]


def test_files_become_a_table_and_a_picture(tmp_path: Path, monkeypatch, capsys):
    file, drawn = tmp_path / "rows.jsonl", tmp_path / "answers.svg"
    file.write_text("".join(each.to_json() + "\n" for each in ROWS))
    monkeypatch.setattr(
        sys, "argv", ["questions", str(file), "--policy", "ours", "--draw", str(drawn)]
    )
    questions.main()
    said = capsys.readouterr().out
    assert "ours against each policy, 2048 tokens" in said and "+79.2" in said
    assert max(map(len, said.splitlines())) <= 80
    picture = drawn.read_text()
    for name in ("full", "ours", "window"):
        assert f">{name}</text>" in picture
    assert picture.count('fill="#ffffff" stroke') == 1  # ours alone has cold entries


def test_the_committed_picture_is_what_the_rows_give(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    rows = root / "lab" / "results" / "reads_cpu-2-cores_2026-11-30"
    names = ("ruler-4096", "others-4096", "ruler-4096-seed1")
    files = [rows / f"{name}.jsonl" for name in names]
    shown = questions.marks(questions.read(files), 4096)
    drawn = questions.chart(shown, questions.axes_of(shown, 4096))
    assert (root / "docs" / "answers.svg").read_text(encoding="utf-8") == drawn


def calls(label: str, sum_nll: list[float]) -> CallsRow:
    return CallsRow(
        label=label, names=["a", "b", "c"], num_tokens=[9, 9, 9], num_answer_tokens=[2, 4, 4],
        hits=[1, 1, 1], num_answers=[1, 1, 1], exact=[0, 0, 0], sum_nll=sum_nll, hit_share=0.3,
        exact_share=0.0, nll=1.0, mean_bytes=1.0, cold_bytes=0.0, all_bytes=1.0, seconds=1.0,
        **{name: NOTHING[name] for name in (
            "settings", "versions", "device", "commit", "parameters", "model", "weights", "source",
            "prompts_sha256", "peak_bytes", "look_share",
        )},
    )  # fmt: skip


def test_conversations_are_paired_by_their_nats(tmp_path: Path, monkeypatch, capsys):
    rows = [calls("full", [2.0, 4.0, 4.0]), calls("ours", [4.0, 4.0, 6.0])]
    (pair,) = questions.call_pairs(rows, "full")
    assert (pair.label, pair.won, pair.lost, pair.num_contexts) == ("ours", 2, 0, 3)
    assert pair.difference == pytest.approx((1.0 + 0.0 + 0.5) / 3)
    assert pair.score == pytest.approx(-(2.0 + 1.0 + 1.5) / 3) and pair.p_value == 0.5
    with pytest.raises(ValueError, match="'theirs' has no rows"):
        questions.call_pairs(rows, "theirs")
    with pytest.raises(ValueError, match="rows of other conversations"):
        questions.call_pairs([rows[0], replace(rows[1], prompts_sha256="2")], "full")
    file = tmp_path / "calls.jsonl"
    file.write_text("".join(each.to_json() + "\n" for each in rows))
    monkeypatch.setattr(sys, "argv", ["questions", str(file), "--calls", "--policy", "full"])
    questions.main()
    said = capsys.readouterr().out
    assert "+50.0" in said and max(map(len, said.splitlines())) <= 80
