"""Comparing the address an episode ended at with the reference."""

from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from agentkv_tasks.evaluate.strings import Scoring

Note = Literal["EXACT", "GOLD in PRED"]
NOTES: tuple[Note, ...] = ("EXACT", "GOLD in PRED")


def url_match(
    reference_url: str, url_note: str | None, url: str, *, scoring: Scoring = "compat"
) -> float:
    """1.0 if `url` is one of the ` |OR| ` alternatives of `reference_url`, else 0.0.

    `url_note` is `EXACT` (also when None) or `GOLD in PRED`: an alternative is part of `url`.
    In `mended` scoring the order of query parameters, percent-encoding and a fragment that the
    reference does not have make no difference to `EXACT`.

    Raises:
        ValueError: `url_note` is neither.
    """
    options = [_clean(option) for option in reference_url.split(" |OR| ")]
    reached = _clean(url)
    match "EXACT" if url_note is None else url_note:
        case "EXACT":
            holds = reached in options
            if not holds and scoring == "mended":
                holds = any(_same_place(option, reached) for option in options)
        case "GOLD in PRED":
            holds = any(option in reached for option in options)
        case _:
            raise ValueError(f"unknown url_note '{url_note}'; known: {', '.join(NOTES)}")
    return float(holds)


def _clean(url: str) -> str:
    return url.replace("localhost", "127.0.0.1").removesuffix("/")


def _same_place(reference: str, url: str) -> bool:
    one, other = urlsplit(reference), urlsplit(url)
    return (
        (one.scheme, one.netloc) == (other.scheme, other.netloc)
        and unquote(one.path).rstrip("/") == unquote(other.path).rstrip("/")
        and sorted(parse_qsl(one.query, keep_blank_values=True))
        == sorted(parse_qsl(other.query, keep_blank_values=True))
        and one.fragment in ("", other.fragment)
    )
