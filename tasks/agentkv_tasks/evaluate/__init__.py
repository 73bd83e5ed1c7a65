"""Scoring of finished episodes by VisualWebArena's rules, without its judge models."""

from agentkv_tasks.evaluate.score import Final, Score, evaluate
from agentkv_tasks.evaluate.strings import SCORINGS, CannotScore, Scoring, string_match
from agentkv_tasks.evaluate.urls import url_match

__all__ = [
    "SCORINGS",
    "Final",
    "Score",
    "Scoring",
    "CannotScore",
    "evaluate",
    "string_match",
    "url_match",
]
