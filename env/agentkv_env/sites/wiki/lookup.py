"""Find articles by former names, shared names, links and search."""

from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from agentkv_env.sites.wiki.article import Article
from agentkv_env.sites.wiki.articles import articles
from agentkv_env.sites.wiki.content import WikiContent


@lru_cache(maxsize=16)
def former_names(content: WikiContent) -> dict[str, str]:
    """Return the titles of articles by former name."""
    return {town.former: town.name for town in content.towns}


@lru_cache(maxsize=16)
def shared_names(content: WikiContent) -> dict[str, tuple[Article, ...]]:
    """Return the articles that share a name, such as "New Bridge", by that name."""
    groups: dict[str, list[Article]] = {}
    towns = tuple(f"{town.name} " for town in content.towns)
    for article in articles(content).values():
        if article.title.startswith(towns):
            groups.setdefault(article.title.partition(" ")[2], []).append(article)
    return {name: tuple(group) for name, group in sorted(groups.items()) if len(group) > 1}


@lru_cache(maxsize=16)
def linked_from(content: WikiContent) -> dict[str, tuple[Article, ...]]:
    """Return, for each title, the other articles that mention it."""
    known = articles(content)
    result: dict[str, list[Article]] = {title: [] for title in known}
    for article in known.values():
        for title in sorted({part.partition("]]")[0] for part in article.marked.split("[[")[1:]}):
            if title != article.title:
                result[title].append(article)
    return {title: tuple(found) for title, found in result.items()}


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search, best match first."""

    articles: tuple[Article, ...]
    suggestion: str = ""
    """A title with a similar spelling, if nothing was found."""


def exact(content: WikiContent, text: str) -> str | None:
    """Return the title, former name or shared name that equals `text`, ignoring case."""
    for names in (articles(content), shared_names(content), former_names(content)):
        for name in names:
            if name.lower() == text.lower():
                return name
    return None


def search(content: WikiContent, text: str) -> Found:
    """Return the articles with all words of `text`, or else with most of them.

    More words in the title come first, then titles that begin with the text, then more mentions.
    """
    words = text.lower().split()
    ranked: list[tuple[int, tuple[int, bool, int], Article]] = []
    for article in articles(content).values():
        title, body = article.title.lower(), article.plain.lower()
        matched = sum(word in body for word in words)
        if matched:
            in_title = sum(word in title for word in words)
            mentions = sum(body.count(word) for word in words)
            rank = (-in_title, not title.startswith(words[0]), -mentions)
            ranked.append((matched, rank, article))
    if not ranked:
        titles = {title.lower(): title for title in articles(content)}
        close = get_close_matches(text.lower(), titles, 1)
        return Found((), titles[close[0]] if close else "")
    most = max(matched for matched, _, _ in ranked)
    best = [(rank, article) for matched, rank, article in ranked if matched == most]
    best.sort(key=lambda pair: (pair[0], pair[1].title))
    return Found(tuple(article for _, article in best))
