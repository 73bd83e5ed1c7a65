"""A run scores every episode by both scorings, and says where they differ."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv_tasks.settings import RunSettings
from tests.tasks.runs import complete_rows, play_all, run

pytestmark = pytest.mark.browser


def task(number: int, references: dict[str, Any], answer: str) -> dict[str, Any]:
    return {
        "sites": ["homepage"],
        "task_id": number,
        "start_url": "__HOMEPAGE__/",
        "intent_template": "",
        "intent_template_id": number,
        "intent": "How much?",
        "eval": {"eval_types": ["string_match"], "reference_answers": references},
        "solution": [f"stop [{answer}]"],
    }


def test_rows_hold_both_scores_and_the_run_names_the_tasks_that_differ(tmp_path: Path) -> None:
    target = {"url": "__HOMEPAGE__/", "locator": "", "required_contents": {"must_include": [""]}}
    opens_pages = {"eval_types": ["program_html"], "program_html": [target, target]}
    tasks = tmp_path / "own.json"
    tasks.write_text(
        json.dumps(
            [
                task(0, {"must_include": ["170"]}, "170"),
                task(1, {"must_include": ["170"]}, "000000170"),
                task(2, {"fuzzy_match": "N/A"}, "There is none."),
                task(3, {"fuzzy_match": ["a boat"]}, "a ship"),
                # the tabs of the first scoring are closed when the second one begins
                {**task(4, {}, "done"), "eval": opens_pages},
            ]
        )
    )
    play_all(
        RunSettings.read(
            **{"tasks": str(tasks), "model": "solution", "out": tmp_path / "out"},
            **{"ocr": False, "screenshots": False},
        )
    )
    output = run(tmp_path / "out", "--tasks", str(tasks), "--model", "solution")
    rows = sorted(complete_rows(tmp_path / "out"), key=lambda row: row.task_id)
    assert [(row.status, row.score, row.other_score) for row in rows] == [
        ("stopped", 1.0, 1.0),
        ("stopped", 0.0, 1.0),
        ("unjudged", None, 0.0),
        ("unjudged", None, None),
        ("stopped", 1.0, 1.0),
    ]
    assert [row.answer for row in rows] == [
        *("170", "000000170", "There is none.", "a ship", "done")
    ]
    said = " ".join(output.split())
    assert "mended scoring scores 2 episodes differently, of tasks 1, 2" in said
