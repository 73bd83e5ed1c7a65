"""The fence around page text in prompts and tool results: tags that the page cannot write."""

import re
import unicodedata


def fenced(text: str, nonce: str) -> str:
    """Return untrusted page text between tags with `nonce`; tags inside the text are broken."""
    return f"<page {nonce}>\n{break_tags(text)}\n</page {nonce}>"


def break_tags(text: str) -> str:
    """Replace the bracket of page tags, and of text that Unicode normalization makes one."""
    if text.isascii():
        return _PAGE_TAG.sub("(", text)
    for form in ("NFKC", "NFKD"):
        if _PAGE_TAG.search(unicodedata.normalize(form, text).casefold()):
            return text.translate(_BRACKETS)
    return text


_PAGE_TAG = re.compile(r"(?i)<(?=[\s/\u0338]*page\b)")
_BRACKETS = str.maketrans(dict.fromkeys("<\u226e\ufe64\uff1c", "("))
"""Replaces every character that normalizes to an opening angle bracket."""
