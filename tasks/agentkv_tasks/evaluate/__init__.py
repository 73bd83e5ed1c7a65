"""Scoring of finished episodes by VisualWebArena's rules."""

from agentkv_tasks.evaluate.calls import asks_admin
from agentkv_tasks.evaluate.graders import NOBODY, Graders
from agentkv_tasks.evaluate.judge import Judge, JudgeError
from agentkv_tasks.evaluate.magento import MagentoAdmin
from agentkv_tasks.evaluate.score import Final, Score, evaluate
from agentkv_tasks.evaluate.strings import SCORINGS, CannotScore, string_match
from agentkv_tasks.evaluate.urls import url_match
from agentkv_tasks.settings import Scoring

__all__ = [
    "NOBODY",
    "SCORINGS",
    "Final",
    "Graders",
    "Judge",
    "JudgeError",
    "MagentoAdmin",
    "Score",
    "Scoring",
    "CannotScore",
    "asks_admin",
    "evaluate",
    "string_match",
    "url_match",
]
