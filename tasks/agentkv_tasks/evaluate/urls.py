"""Comparison of the final address of an episode with a reference."""

from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from agentkv_tasks.settings import Scoring

Note = Literal["EXACT", "GOLD in PRED"]
NOTES: tuple[Note, ...] = ("EXACT", "GOLD in PRED")


def url_match(
    reference_url: str, url_note: str | None, url: str, *, scoring: Scoring = "compat"
) -> float:
    """Return 1.0 if `url` matches `reference_url`, else 0.0.

    Args:
        reference_url: one address, or alternatives joined by ` |OR| `.
        url_note: `EXACT` (None means the same), or `GOLD in PRED` if `url` need only contain an
            alternative.
        scoring: with `mended`, `EXACT` ignores the order of query parameters, percent-encoding and
            a fragment that the reference lacks.

    Raises:
        ValueError: `url_note` is unknown.
    """
    options = [_clean(option) for option in reference_url.split(" |OR| ")]
    final = _clean(url)
    match "EXACT" if url_note is None else url_note:
        case "EXACT":
            holds = final in options
            if not holds and scoring == "mended":
                holds = any(_is_equivalent(option, final) for option in options)
        case "GOLD in PRED":
            holds = any(option in final for option in options)
        case _:
            raise ValueError(f"unknown url_note '{url_note}'; known: {', '.join(NOTES)}")
    return float(holds)


def _clean(url: str) -> str:
    return url.replace("localhost", "127.0.0.1").removesuffix("/")


def _is_equivalent(reference: str, url: str) -> bool:
    one, other = urlsplit(reference), urlsplit(url)
    return (
        (one.scheme, one.netloc) == (other.scheme, other.netloc)
        and unquote(one.path).rstrip("/") == unquote(other.path).rstrip("/")
        and sorted(parse_qsl(one.query, keep_blank_values=True))
        == sorted(parse_qsl(other.query, keep_blank_values=True))
        and one.fragment in ("", other.fragment)
    )
