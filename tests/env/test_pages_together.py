"""Pages that take values back late, have shadow roots, or ask something amid an action."""

from typing import TYPE_CHECKING

import pytest

from agentkv_env.errors import ActionFailed
from tests.env.kinds.keyed_fields import DAY, SEGMENTS

if TYPE_CHECKING:
    from conftest import Visit

pytestmark = pytest.mark.browser

ROOT = """<div id=h></div><script>const root = h.attachShadow({{ mode: "{mode}" }});
    root.innerHTML = `{html}`; {more}</script>"""


def in_root(html: str, *, mode: str = "open", more: str = "") -> str:
    """A page that has `html` in a shadow root of an ordinary element."""
    return ROOT.format(mode=mode, html=html, more=more)


# ---- values that the page takes back


def test_a_field_that_takes_its_text_back_later_fails(visit: "Visit") -> None:
    visit.show("""<label>City <input value=old
        oninput="setTimeout(() => this.value = 'old', after)"></label><script>after = 800""")
    for after_ms in (800, 200):
        visit.session.page.evaluate(f"after = {after_ms}")
        with pytest.raises(ActionFailed, match="old"):
            visit.act("type [{f}] [hello] [0]", f="City")


def test_boxes_that_are_emptied_later_fail(visit: "Visit") -> None:
    boxes = "".join(f"<input maxlength=1 size=1 aria-label='Digit {i}'>" for i in range(1, 4))
    visit.show(f"""<div>{boxes}</div><script>
        const all = [...document.querySelectorAll('input')];
        all.forEach((e, i) => e.oninput = () => {{ all[i + 1]?.focus();
          if (i === 2) setTimeout(() => all.forEach((each) => each.value = ''), 400) }});
        </script>""")
    with pytest.raises(ActionFailed):
        visit.act("type [{f}] [123] [0]", f="Digit 1")


def test_segments_that_the_page_corrects_later_fail(visit: "Visit") -> None:
    visit.show(
        SEGMENTS % DAY + "<script>all[2].onblur = all[2].onfocus = () => setTimeout(() => {"
        " all[1].ariaValueNow = 28; all[1].ariaValueText = all[1].textContent = '28' }, 400)"
        "</script>"
    )
    with pytest.raises(ActionFailed, match='"day" of .* shows "28" now instead of "30"'):
        visit.act("type [{f}] [02 30 2027] [0]", f="month")


def test_a_slider_that_is_moved_back_later_fails(visit: "Visit") -> None:
    visit.show("""<div role=slider tabindex=0 aria-label=Volume aria-valuemin=0 aria-valuemax=10
        aria-valuenow=5>o</div><script>const s = document.querySelector('div');
        s.onkeydown = ({ key }) => { const now = Number(s.ariaValueNow);
          s.ariaValueNow = key === 'ArrowRight' ? now + 1 : key === 'ArrowLeft' ? now - 1 : now;
          setTimeout(() => s.ariaValueNow = 5, 300) };</script>""")
    with pytest.raises(ActionFailed, match="Volume"):
        visit.act("type [{f}] [8] [0]", f="Volume")


def test_a_field_that_is_drawn_anew_elsewhere_with_its_old_value_fails(visit: "Visit") -> None:
    visit.show("""<div id=b></div><script>let t; function draw(said) {
        b.innerHTML = (said ? '<p style="height: 60px">' + said + '</p>' : '') +
          '<label>Code <input id=q></label>';
        q.value = 'old';
        q.oninput = () => { clearTimeout(t); t = setTimeout(() => draw('Not allowed'), 200) } }
        draw('')</script>""")
    with pytest.raises(ActionFailed, match="old"):
        visit.act("type [{f}] [hello] [0]", f="Code")


# ---- shadow roots


def test_a_dialog_in_a_closed_root_of_an_empty_element_is_read(visit: "Visit") -> None:
    html = "<dialog><p>Sure?</p><button>Yes</button></dialog>"
    more = "root.querySelector('dialog').showModal()"
    page = visit.show("<button>Behind</button>" + in_root(html, mode="closed", more=more))
    assert {"Sure?", "Yes"} <= {node.name for node in page.nodes}


def test_what_hovering_reveals_in_a_shadow_root_is_said(visit: "Visit") -> None:
    page = visit.show(
        in_root("""<style>tr button { visibility: hidden } tr:hover button { visibility: visible }
        </style><table><tr><td>Row 1<td><button>Edit</button></tr></table>""")
    )
    (row,) = [node for node in page.nodes if "Row 1" in node.name]
    assert row.id is not None and "hover" in row.states


def test_a_form_in_a_shadow_root_says_why_it_is_not_sent(visit: "Visit") -> None:
    visit.show(
        in_root("""<form action=/d><label>Mail <input type=email required></label>
        <button>Send</button></form>""")
    )
    page = visit.act("click [{f}]", f="Send")
    assert any("did not send the form" in notice and "Mail" in notice for notice in page.notices)


def test_a_code_is_typed_into_boxes_that_stand_in_a_shadow_root(visit: "Visit") -> None:
    boxes = "".join(f"<input maxlength=1 aria-label='Digit {i}'>" for i in range(1, 5))
    visit.show(in_root(boxes))
    visit.act("type [{f}] [4821] [0]", f="Digit 1")
    held = """[...document.querySelector('#h').shadowRoot.querySelectorAll('input')]
        .map(({ value }) => value).join('')"""
    assert visit.session.page.evaluate(held) == "4821"


# ---- dialogs


def test_a_drag_that_a_dialog_interrupts_ends_where_it_was_to_end(visit: "Visit") -> None:
    visit.show("""<style>div { width: 80px; height: 40px; margin: 30px; user-select: none }</style>
        <div role=button tabindex=0 aria-label=Item onmousedown="held = 1">Item</div>
        <div role=button tabindex=0 aria-label=Target
          onmouseenter="if (held && !asked) { asked = 1; confirm('Move?') }"
          onmouseup="if (held) document.title = 'moved'">Target</div>
        <div role=button tabindex=0 aria-label=Trash
          onmouseup="if (held) document.title = 'deleted'">Trash</div>
        <script>var held = 0, asked = 0; addEventListener('mouseup', () => held = 0)</script>""")
    visit.act("drag [{f}] [{g}]", f="Item", g="Target")
    visit.act("click [{f}]", f="OK")
    assert visit.act("click [{f}]", f="Trash").title == "moved"
