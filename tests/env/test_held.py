"""When the text that a field holds counts as what was typed."""

import pytest

from agentkv_env.held import is_formatted, is_same

FORMATTED = (
    *(("5551234567", "(555) 123-4567"), ("5551234567", "+1 (555) 123-4567")),
    *(("4111111111111111", "4111 1111 1111 1111"), ("(030) 12 34 56", "030123456")),
    *(("1234", "1,234.00"), ("1234", "$1,234"), ("1234.5", "1.234,50 €"), ("70", "70 kg")),
    *(("1,234,567", "1234567"), ("0.50", ".5"), ("-5", "-5.0"), ("007", "7"), ("12", "12 %")),
    *(("3/4/2026", "03/04/2026"), ("9:30 am", "09:30 AM"), ("1500", "₩1,500"), ("5", "5 %")),
    *(("12052026", "12.05.2026"), ("0930", "09:30"), ("12", "12/__/____")),
    *(("de89 3704 0044", "DE89 3704 0044"), ("My Post", "my-post"), ("Otter", "OTTER")),
    *(("example.org", "https://example.org"), ("ann", "@ann"), ("Oslo", "Oslo, Norway")),
)
OTHER = (
    *(("482913", "4"), ("150", "100"), ("1.5", "15"), ("-5", "5"), ("1234", "12.34")),
    *(("12a4", "124"), ("ann.lee", "annlee"), ("O'Neil", "ONeil"), ("abcdef", "abc")),
    *(("Oslo", "Romeoslo"), ("Oslo", ""), ("Rome", "Romeo"), ("***", "**"), ("1.2.3", "123.0")),
    *(("3/4/2026", "04/03/2026"), ("10:30", "1:30"), ("5 %", "50"), ("100", "1")),
    *(("A1", "B1"), ("9" * 50, "9" * 49), ("5551234567", "1234567"), ("", "Rome")),
)


@pytest.mark.parametrize(("text", "held"), FORMATTED)
def test_a_form_of_the_fields_own_counts_but_is_not_the_same(text: str, held: str) -> None:
    assert is_formatted(text, held)
    assert not is_same(text, held)


@pytest.mark.parametrize(("text", "held"), OTHER)
def test_a_value_that_lost_or_changed_something_does_not_count(text: str, held: str) -> None:
    assert not is_formatted(text, held)
    assert not is_same(text, held)


def test_white_space_and_invisible_characters_do_not_count() -> None:
    assert is_same("a b\nc ", "a\N{NO-BREAK SPACE}b c\N{ZERO WIDTH SPACE}")


def test_a_text_behind_the_old_one_does_not_count_as_put_in_its_place() -> None:
    assert is_formatted("Oslo", "Rome Oslo")
    assert not is_formatted("Oslo", "Rome Oslo", before="Rome")
