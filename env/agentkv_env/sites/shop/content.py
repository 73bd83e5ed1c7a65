"""The shop's content, generated from a world seed."""

from dataclasses import dataclass

from agentkv_env.sites.names import Names
from agentkv_env.sites.town import Town


@dataclass(frozen=True, slots=True)
class Content:
    """To be written."""


def generate(names: Names, town: Town) -> Content:
    return Content()
