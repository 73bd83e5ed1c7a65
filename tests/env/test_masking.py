"""`Secrets` masks every spelling of a secret and nothing else."""

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv_env.masking import MASK, Secrets
from agentkv_env.serialize import neutralize

SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent": lambda text: quote(text, safe=""),
    "percent-encoded path": quote,
    "percent, lower case": lambda text: quote(text, safe="").lower(),
    "percent, twice": lambda text: quote(quote(text, safe=""), safe=""),
    "plus": quote_plus,
    "html": html.escape,
    "html character references": lambda text: "".join(f"&#{ord(letter)};" for letter in text),
    "json": json.dumps,
    "json, not ascii": lambda text: json.dumps(text, ensure_ascii=False),
    "json in json": lambda text: json.dumps(json.dumps(text)),
    "repr": repr,
    "neutralized as in pages": neutralize,
}
for where in range(3):
    for kind in (base64.b64encode, base64.urlsafe_b64encode):

        def encoded(text: str, where: int = where, kind: Callable[[bytes], bytes] = kind) -> str:
            return kind(b"xyz"[:where] + text.encode() + b":more").decode()

        SPELLINGS[f"{kind.__name__} at {where}"] = encoded

SECRETS = [
    "hunter22",
    "p&ss <w>\"o'rd\\/+%25=?#",
    "pässwört ☃ 🔑",
    "[`a] (b)c",
    " ".join(map(str, range(999))),
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", SECRETS)
def test_every_spelling_of_a_secret_is_masked(secret: str, spelling: str) -> None:
    spelled = SPELLINGS[spelling](secret)
    masked = Secrets([secret]).mask(f"before {spelled} after")
    assert masked.startswith("before ") and masked.endswith(" after") and MASK in masked
    left = masked.removeprefix("before ").removesuffix(" after").replace(MASK, "")
    assert len(left) < 60 and secret[:4] not in left and spelled.strip("\"'")[:12] not in left, (
        masked
    )


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=8))
def test_secrets_of_any_characters_are_masked(secret: str) -> None:
    secrets = Secrets([secret])
    for spelled in (secret, quote(secret, safe=""), html.escape(secret), json.dumps(secret)):
        assert secrets.mask(f"<{spelled}>").strip('<">') == MASK


def test_a_text_without_secrets_is_unchanged() -> None:
    text = "link Blue [3] http://a.test/?q=hunter+21 mail me@a.test aHVudGVkMjI="
    assert Secrets(["hunter22", "1", "ab"]).mask(text) == text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("type [1] [a] [1]", "type [1] [***] [1]"),
        ("stop [a]", "stop [***]"),
        ("a", "***"),
        ("http://x.test/?name=a&pin=a&b=ab", "http://x.test/?name=***&pin=***&b=ab"),
        ("a cat and a [a] click [1]", "a cat and a [a] click [1]"),
    ],
)
def test_a_one_letter_secret_is_masked_only_as_an_entire_value(text: str, masked: str) -> None:
    assert Secrets(["a"]).mask(text) == masked


def test_a_short_secret_is_masked_only_as_an_entire_word() -> None:
    secrets = Secrets(["1234"])
    assert secrets.mask("pin 1234, price 12345") == "pin ***, price 12345"
    assert secrets.mask("?a=%201234&b=51234") == "?a=%20***&b=51234"


def test_credentials_of_an_address_are_masked_everywhere() -> None:
    secrets = Secrets()
    assert secrets.mask("see http://bo:pa%40ss99@a.test/x") == "see http://***@a.test/x"
    assert secrets.mask("http:\\\\t0ken@a.test") == "http:\\\\***@a.test"
    secrets.add_credentials("http://bo:pa%40ss99@a.test/x http://t0kent0ken@b.test/")
    assert secrets.mask("said pa@ss99 and t0kent0ken to bo") == "said *** and *** to bo"
    given = base64.b64encode(b"bo:pa@ss99").decode()
    assert "***" in secrets.mask(f"Authorization: Basic {given}")


def test_a_truncated_secret_is_masked() -> None:
    secrets = Secrets(["correct horse battery"])
    assert secrets.mask("url http://a.test/?p=correct+horse+ba...") == "url http://a.test/?p=***..."
    assert secrets.mask("typed 'correct ho…") == "typed '***…"


def test_nested_texts_are_masked_except_under_kept_keys() -> None:
    value = {"goal": "say hunter22", "kind": "hunter22", "lines": ["hunter22", 5], "none": None}
    assert Secrets(["hunter22"]).mask_within(value, keep=frozenset({"kind"})) == {
        "goal": "say ***",
        "kind": "hunter22",
        "lines": ["***", 5],
        "none": None,
    }
