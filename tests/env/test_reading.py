"""The nodes that the walk finds on a page."""

import threading
from typing import TYPE_CHECKING, Any

import pytest

from agentkv_env.page import Box, Page
from agentkv_env.serialize import serialize

if TYPE_CHECKING:
    from conftest import Visit

pytestmark = pytest.mark.browser


def lines(page: Page) -> list[str]:
    return serialize(page).text.splitlines()[2:]


def test_every_kind_of_control_is_read_with_name_value_and_state(visit: "Visit") -> None:
    page = visit.show("""
        <a href=/a>Kayaks</a> <a href=/b><img src=x alt="Blue kayak"></a>
        <button disabled>Buy</button> <input type=submit value=Send> <input type=reset>
        <div role=button aria-pressed=true>Like</div> <div onclick="1">Fold</div>
        <span style="cursor:pointer">Pick</span>
        <label for=q>Search</label><input id=q value="old words" required>
        <input placeholder="Your town"> <input type=password aria-label=Secret value=hunter2>
        <input title=Amount type=number value=3 readonly>
        <label>Remember <input type=checkbox checked></label>
        <input type=radio name=r id=r1><label for=r1>Small</label>
        <label>Sort <select><option>Price<option selected>Name</select></label>
        <select multiple aria-label=Colours><option selected>Red<option selected>Blue</select>
        <textarea aria-label=Note>line one
line two</textarea>
        <input list=l aria-label=City>
        <datalist id=l><option value=Rome><option value=Oslo></datalist>
        <input type=range aria-label=Volume min=0 max=10 value=4>
        <input type=date aria-label=Day value=2026-01-31>
        <div contenteditable aria-label=Post>draft</div>
        <details><summary>More</summary><p>hidden words</p></details>
        <div role=tab aria-selected=true tabindex=0>Photos</div>
        <button aria-expanded=false>Menu</button> <input type=hidden value=no>
    """)
    assert lines(page) == [
        "link Kayaks [1]",
        "link Blue kayak [2]",
        "button Buy (disabled) [3]",
        "button Send [4]",
        "button Reset [5]",
        "button Like (pressed) [6]",
        "button Fold [7]",
        "button Pick [8]",
        "textbox Search = old words (required) [9]",
        "textbox Your town [10]",
        "textbox Secret = ******** (password) [11]",
        "textbox Amount = 3 (readonly) [12]",
        "checkbox Remember (checked) [13]",
        "radio Small [14]",
        "combobox Sort = Name (options: Price | Name) [15]",
        "listbox Colours = Red, Blue (options: Red | Blue) [16]",
        "textbox Note = line one line two [17]",
        "combobox City (options: Rome | Oslo) [18]",
        "slider Volume = 4 [19]",
        "textbox Day = 2026-01-31 [20]",
        "textbox Post = draft [21]",
        "button More (collapsed) [22]",
        "tab Photos (selected) [23]",
        "button Menu (collapsed) [24]",
    ]


def test_text_is_read_in_blocks_headings_and_rows(visit: "Visit") -> None:
    page = visit.show("""
        <h1>Fair of <em>boats</em></h1><h2><a href=/x>Linked</a></h2>
        <p>A <b>red</b> one, see <a href=/y>this page</a> for more.<br>New line</p>
        <table><tr><th>Item<th>Cost</tr><tr><td>Kayak<td>$39</tr>
        <tr><td>Canoe<td><button>Buy</button></tr></table>
        <ul><li>First<li>Second</ul><pre>one
two</pre>
    """)
    assert lines(page) == [
        "heading Fair of boats",
        "link Linked (heading) [1]",
        "A red one, see",
        "link this page [2]",
        "for more.",
        "New line",
        "Item | Cost",
        "Kayak | $39",
        "Canoe",
        "button Buy [3]",
        *("First", "Second", "one", "two"),
    ]


def test_headings_with_controls_are_headings_and_their_controls_have_numbers(
    visit: "Visit",
) -> None:
    page = visit.show("""
        <h2><a href=/a>The <b>tides</b></a></h2><h3><button>Times</button></h3>
        <a href=/b><h3>A result</h3></a> <div role=heading><span><a href=/c>Old</a></span></div>
        <h2>History <a href=/d>edit</a> <button>Fold</button></h2>
        <a href=/e><h3>A card</h3><p>with more</p></a>""")
    assert lines(page) == [
        "link The tides (heading) [1]",
        "button Times (heading) [2]",
        "link A result (heading) [3]",
        "link Old (heading) [4]",
        *("heading History edit", "link edit [5]", "button Fold [6]"),
        "link A card with more [7]",
    ]


def test_controls_without_a_label_are_named_by_what_stands_beside_them(visit: "Visit") -> None:
    page = visit.show("""
        <table><tr><th>City<th>Qty</tr><tr><td><input><td><input></tr></table>
        <table><tr><th><th>Price<th>Qty</tr><tr><td>Kayak<td>39<td><input></tr></table>
        <table><tr><td>Street:<td><input><td>No.<td><input></tr></table>
        <div>Age <input></div><div><span>Town *</span><div><input></div></div>
        <input aria-describedby=d><i id=d>Your code</i>
        <p>A long text, which explains at length what all of this is about, and names no field.</p>
        <div><input></div><div>Size <input><input></div>""")
    assert [node.name for node in page.nodes if node.id] == [
        *("City", "Qty", "Kayak, Qty", "Street", "No.", "Age", "Town", "Your code", "", "Size", ""),
    ]


def test_buttons_with_an_icon_alone_have_a_name(visit: "Visit") -> None:
    page = visit.show("""<style>svg, i {display: inline-block; width: 9px; height: 9px}</style>
        <button><svg><title>Close</title></svg></button>
        <button title=Save><svg><use href="#icon-disk"/></svg></button>
        <button data-tooltip=Copy><i class="fa fa-copy"></i></button>
        <button><svg><use href="/all.svg#icon-trash"/></svg></button>
        <button><i class="fa fa-arrow-left"></i></button>
        <button class=x><i class=y></i></button>""")
    assert [node.name for node in page.nodes] == [
        *("Close", "Save", "Copy", "icon trash", "icon arrow left", ""),
    ]


def test_what_nobody_sees_is_not_read(visit: "Visit") -> None:
    page = visit.show("""
        <p>Seen</p><p style="display:none">none</p><p style="visibility:hidden">invisible</p>
        <button style="opacity:0">clear</button><p hidden>attribute</p>
        <div style="position:absolute;left:-9999px">off to the left</div>
        <div style="height:20px;overflow:hidden"><p style="margin:0;height:20px">inside</p>
        <p>clipped away</p></div><script>1</script><style>p{}</style><noscript>n</noscript>
        <div style="height:3000px"></div><p>far below</p>
    """)
    assert lines(page) == ["Seen", "inside", "more below"]
    assert page.pixels_below > 2000 and page.pixels_above == 0


def test_a_hidden_checkbox_is_found_at_its_label(visit: "Visit") -> None:
    page = visit.show("""<style>input{position:absolute;opacity:0}</style>
        <input type=checkbox id=c><label for=c>Gift wrap</label>""")
    assert lines(page) == ["checkbox Gift wrap [1]"]
    assert lines(visit.act("click [{box}]", box="Gift wrap")) == [
        "checkbox Gift wrap (checked) [1]"
    ]


def test_a_covered_element_says_so(visit: "Visit") -> None:
    page = visit.show("""<body style="margin:0"><button>Under</button><div style="position:fixed;
        top:0;background:white">Pick one <button>Yes</button></div>""")
    assert lines(page) == ["button Under (covered) [1]", "Pick one", "button Yes [2]"]


@pytest.mark.parametrize(
    ("dialog", "num_covered"),
    [
        ("<dialog id=d>{}</dialog><script>d.showModal()</script>", 5),
        ("<div style='position:fixed;inset:0;background:#0008'><div>{}</div></div>", 4),
        (
            """<div style="position:fixed;inset:0;background:#0008"></div>
            <div style="position:fixed;left:200px;top:200px;width:400px;height:300px">{}</div>""",
            4,
        ),
    ],
)
def test_an_open_dialog_comes_first_and_what_it_covers_is_counted(
    dialog: str, num_covered: int, visit: "Visit"
) -> None:
    inside = "<h2>Sure?</h2><p>It is final.</p><button>Yes</button>"
    page = visit.show(
        """<body style="margin:0"><h1>Page</h1><button>Under</button><a href=/x>Link</a>
        <p>Text</p><button style="position:fixed;left:0;bottom:0;z-index:9">Help</button>"""
        + dialog.format(inside)
    )
    read = lines(page)
    assert read[0].startswith("notice: a dialog is open; ")
    assert read[0].endswith(f"left out: {num_covered}")
    yes = next(node.id for node in page.nodes if node.name == "Yes")
    assert read[1:4] == ["heading Sure?", "It is final.", f"button Yes [{yes}]"]
    assert not {"Text", "heading Page"} & set(read) and "Under" not in str(read)


def test_what_a_dialog_covers_in_a_frame_of_another_origin_is_counted(visit: "Visit") -> None:
    inner = """<body><p>One</p><p>Two</p><p>Three</p>
        <div role=dialog aria-modal=true style="position:fixed;inset:0;background:white">Sure?</div>
        <p aria-busy=true style="position:fixed;top:0">Wait</p>"""
    page = visit.show(
        '<iframe src="http://partner.localhost:{port}/in" height=300></iframe>', **{"in": inner}
    )
    assert "Sure?" in lines(page) and "One" not in lines(page)
    assert any(notice.endswith("left out: 3") for notice in page.notices)


def test_a_page_in_a_layer_is_no_dialog(visit: "Visit") -> None:
    page = visit.show("""<a href=#c>Skip</a><div style="position:fixed;inset:0;background:white">
        <h1>Page</h1><button>Buy</button></div>""")
    assert lines(page) == ["link Skip (covered) [1]", "heading Page", "button Buy [2]"]


def test_a_veil_without_content_is_no_dialog(visit: "Visit") -> None:
    page = visit.show("""<button>Under</button><p>Text</p>
        <div style="position:fixed;inset:0;background:#0008"></div>""")
    assert lines(page) == ["button Under (covered) [1]", "Text"]


def test_what_listens_to_presses_has_a_number(visit: "Visit") -> None:
    page = visit.show("""<div id=a>Fold</div> <a id=b>More</a> <p><span id=c>Up</span> text</p>
        <div id=d><h3>Plain</h3><p>words</p></div>
        <table><tr id=e><td>Ann<td>3</tr><tr><td>Bob<td id=f>4</tr></table>
        <ul id=g><li>one<li>two</ul><script>
        for (const id of "abcdefg") document.getElementById(id).addEventListener("click", () => 1);
        document.body.addEventListener("click", () => 1);</script>""")
    assert lines(page) == [
        *("button Fold [1]", "link More [2]", "button Up [3]", "text"),
        *("heading Plain", "words", "button Ann | 3 [4]", "Bob", "button 4 [5]", "one", "two"),
    ]


def test_a_listener_added_later_is_found(visit: "Visit") -> None:
    page = visit.show("""<p id=a>Later</p><button onclick="a.onclick = () => 1;
        document.body.append(document.createElement('i'))">Go</button><script></script>""")
    assert lines(page) == ["Later", "button Go [1]"]
    assert lines(visit.act("click [1]")) == ["button Later [2]", "button Go [1]"]


def test_the_days_of_a_calendar_have_numbers(visit: "Visit") -> None:
    days = "<table id=t{}><tr><th>Mo<th>Tu</tr><tr><td><td>1</tr><tr><td>2<td>3</tr></table>"
    page = visit.show(f"""<style>.p {{cursor: pointer}}</style>{days.format(1)}
        <div class=p>{days.format(2)}</div><script>t1.onclick = () => 1</script>""")
    week = ["Mo | Tu", "button 1 [{}]", "button 2 [{}]", "button 3 [{}]"]
    assert lines(page) == [line.format(index) for index, line in enumerate(week)] + [
        line.format(index + 3) for index, line in enumerate(week)
    ]


def test_several_things_to_press_in_one_box_have_numbers_of_their_own(visit: "Visit") -> None:
    page = visit.show("""<style>div, ul {cursor: pointer}</style>
        <div>Card <b id=x>Close</b></div><ul><li>Red<li>Blue</ul><div>One <b>box</b></div>
        <script>x.addEventListener("mousedown", () => 1)</script>""")
    assert lines(page) == [
        *("button Card Close [1]", "button Close [2]"),
        *("button Red [3]", "button Blue [4]", "button One box [5]"),
    ]


def test_areas_of_image_maps_and_canvases_have_numbers(visit: "Visit", poster: Any) -> None:
    page = visit.show(
        """<body style="margin:0"><img src=/map usemap=#m alt=Island><map name=m>
        <area shape=rect coords="0,0,100,80" href=/north alt=North>
        <area shape=circle coords="200,40,30" href=/south title=South>
        <area shape=poly coords="240,0,320,0,320,80" alt=nothing></map>
        <canvas width=100 height=50 style="display:block">A chart</canvas>
        <canvas width=100 height=50 style="pointer-events:none" aria-label=Backdrop></canvas>""",
        map=poster(""),
        north="<p>In the north",
    )
    assert lines(page)[1:] == [
        *("image Island", "link North [1]", "link South [2]", "canvas A chart [3]"),
        "image Backdrop",
    ]
    assert page.nodes[2].box == Box(170, 10, 60, 60)
    assert lines(visit.act("click [1]")) == ["In the north"]


def test_what_can_be_dragged_has_a_number(visit: "Visit") -> None:
    page = visit.show("""<p draggable=true>Task A</p><a href=/x draggable=true>Task B</a>
        <div draggable=true>Task C <button>Done</button></div><img draggable=true alt=Coin
        width=20 height=20>""")
    assert lines(page) == [
        *("item Task A (draggable) [1]", "link Task B (draggable) [2]"),
        *("item Task C (draggable) [3]", "Task C", "button Done [4]"),
        "item Coin (draggable) [5]",
    ]


def test_an_editor_of_code_has_a_number_and_its_lines(visit: "Visit") -> None:
    page = visit.show("""<div class=CodeMirror><div style="width:0;height:0;overflow:hidden">
        <textarea style="width:1px;height:1px"></textarea></div><pre>if a:</pre>
        <pre>  b()</pre></div><div contenteditable style="white-space:pre" aria-label=Code>if c:
  d()</div>""")
    assert lines(page) == [
        *("textbox [1]", "if a:", "  b()", "textbox Code [2]", "if c:", "  d()"),
    ]


def test_areas_and_frames_that_scroll_say_whether_there_is_more(visit: "Visit") -> None:
    tall = "<p>First</p><div style='height:900px'></div><p>Last</p>"
    page = visit.show(
        f"""<div id=a aria-label=Chat tabindex=0 style="height:100px;overflow:auto">{tall}</div>
        <iframe src=/inner title=Inner height=100></iframe>
        <iframe src="http://partner.localhost:{{port}}/inner" title=Other height=100></iframe>
        <div style="height:100px;overflow:auto">Short</div>""",
        inner=tall,
    )
    assert lines(page) == [
        *("area Chat (more below) [1]", "First", "area Inner (more below) [2]", "First"),
        *("area Other (more below) [3]", "First", "Short"),
    ]
    visit.session.page.evaluate("a.scrollTop = 300")
    assert lines(visit.session.observe())[0] == "area Chat (more above, more below) [1]"


def test_a_page_that_is_busy_or_moves_says_so(visit: "Visit") -> None:
    page = visit.show("""<div aria-busy=true>Loading</div><p aria-busy=true hidden>no</p>
        <style>@keyframes k {to {left: 50px}} .m {position: relative; animation: k 60s}
        .s {animation: k 9s infinite}</style><div class=s><p>a<p>b<p>c<p>d</div>
        <div class=m><a href=/1>One</a><p>Two</p><button>Three</button></div>""")
    assert page.notices == (
        "a part of the page says that it is still loading",
        "3 elements and texts of the page are still moving",
    )
    assert visit.show("<p>Still").notices == ()


def test_blocked_scripts_and_styles_are_counted_once(visit: "Visit") -> None:
    html = """<script src="http://cdn.localhost:{port}/a.js"></script>
        <script src="http://cdn.localhost:{port}/b.js"></script><p>Text</p>
        <link rel=stylesheet href="http://cdn.localhost:{port}/c.css">
        <img src="http://cdn.localhost:{port}/d.png">"""
    blocked = "2 scripts and 1 style of cdn.localhost:{} were blocked: not on the allowed hosts"
    assert visit.show(html).notices == (blocked.format(visit.pages.port),)
    assert visit.show(html).notices == ()


def test_requests_without_an_answer_are_counted(visit: "Visit") -> None:
    never = threading.Event()
    page = visit.show("<p>Text</p><script>fetch('/slow')</script>", slow=never)
    assert page.notices == ("the page is still loading: 1 request has no answer yet",)
    never.set()


def test_a_control_drawn_over_the_native_one_is_read_once(visit: "Visit") -> None:
    box = "position:absolute;left:9px;width:90px;height:20px"
    page = visit.show(f"""<input type=checkbox aria-label=Gift style="{box};top:9px">
        <div role=checkbox tabindex=0 aria-label=Gift style="{box};top:9px"></div>
        <div role=button tabindex=0 style="position:absolute;top:50px"><button>Save</button></div>
        <a href=/a style="{box};top:90px">Same</a><a href=/b style="{box};top:120px">Same</a>""")
    assert lines(page) == [
        *("checkbox Gift [2]", "button Save [4]", "link Same [5]", "link Same [6]"),
    ]


def test_shadow_roots_and_slots_are_read_in_place(visit: "Visit") -> None:
    page = visit.show("""<p>before</p><div id=host><b>slotted</b></div><p>after</p><script>
        host.attachShadow({mode: 'open'}).innerHTML =
          '<button>In the shadow</button><slot></slot>'</script>""")
    assert lines(page) == ["before", "button In the shadow [1]", "slotted", "after"]


def test_preformatted_lines_in_a_row_of_a_table_stay_apart(visit: "Visit") -> None:
    page = visit.show("<table><tr><td><pre>1\n2</pre><td><pre>a = 1\nb = 2</pre></table>")
    assert lines(page) == ["1", "2", "a = 1", "b = 2"]


def test_frames_are_read_with_boxes_in_the_viewport(visit: "Visit") -> None:
    inner = "<body style='margin:0'><button style='margin:10px'>Inner</button>"
    page = visit.show(
        """<body style="margin:0"><p style="margin:0;height:50px">top</p>
        <iframe src=/inner style="border:5px solid;width:200px;height:60px;display:block"></iframe>
        <iframe src="http://partner.localhost:{port}/inner" width=200 height=60
          style="border:0"></iframe><button>Last</button>""",
        inner=inner,
    )
    names = [(node.name, node.id) for node in page.nodes if node.id]
    assert [name for name, _ in names] == ["Inner", "Inner", "Last"]
    assert len({id for _, id in names}) == 3
    same, other = (node.box for node in page.nodes if node.name == "Inner")
    assert (same.x, same.y) == (15, 65)
    assert (other.x, other.y) == (10, 130)


def test_boxes_are_the_first_rectangle_of_a_wrapped_link(visit: "Visit") -> None:
    page = visit.show("""<body style="margin:0;font:20px/30px DejaVu Sans"><div
        style="width:200px"><span style="display:inline-block;width:120px">x</span><a
        href=/a>a link that wraps over lines</a></div>""")
    box = next(node.box for node in page.nodes if node.id == 1)
    assert box.x >= 120 and box.y < 30 and box.height <= 30


def test_numbers_stay_while_the_document_lives_and_begin_anew_after_it(visit: "Visit") -> None:
    page = visit.show("""<button onclick="this.insertAdjacentHTML('beforebegin',
        '<button>New</button>')">Old</button>""")
    assert [node.id for node in page.nodes] == [1]
    page = visit.act("click [1]")
    assert [(node.name, node.id) for node in page.nodes] == [("New", 2), ("Old", 1)]
    visit.session.open(visit.pages.origin() + "/")
    assert [node.id for node in visit.session.observe().nodes] == [1]


def test_scripts_of_the_page_cannot_change_what_is_read(visit: "Visit") -> None:
    page = visit.show("""<button>True name</button><script>
        JSON.stringify = () => '{"nodes": []}';
        Element.prototype.getClientRects = () => [];
        Element.prototype.getBoundingClientRect = () => ({x: 0, y: 0, width: 0, height: 0});
        window.getComputedStyle = () => ({display: 'none'});
        document.elementFromPoint = () => null;
        Object.defineProperty(Node.prototype, 'textContent', {get: () => 'Forged'});
        WeakMap.prototype.get = () => 99;
        window.agentkv = {walk: () => '{}'};</script>""")
    assert lines(page) == ["button True name [1]"]
    assert visit.session.page.content().count("True name") == 1


def test_reading_leaves_the_page_as_it_is(visit: "Visit") -> None:
    visit.show("<input aria-label=a><button>b</button><p>c</p>")
    assert visit.session.page.content() == (
        '<html><head></head><body><input aria-label="a"><button>b</button><p>c</p></body></html>'
    )


def test_a_box_is_in_pixels_of_the_viewport_after_scrolling(visit: "Visit") -> None:
    html = "<body style='margin:0'><div style='height:700px'></div><button>B</button>"
    visit.show(html + "<div style='height:2000px'></div>")
    page = visit.act("scroll [down]")
    assert page.pixels_above == 600
    assert next(node.box.y for node in page.nodes if node.name == "B") == 100
    assert isinstance(page.nodes[0].box, Box)


def test_equal_texts_at_different_places_are_all_read(visit: "Visit") -> None:
    page = visit.show("""<p>24.36</p><p>24.36</p><table><tr><td>0<td>0</table>
        <div style="position:relative"><span>Twice</span>
        <div style="position:absolute;top:0">Twice</div></div>""")
    assert lines(page) == ["24.36", "24.36", "0 | 0", "Twice"]


def test_empty_cells_keep_the_others_under_their_headings(visit: "Visit") -> None:
    page = visit.show("""<table><tr><th>Item<th colspan=2>Size<th>Price</tr>
        <tr><td>Tent<td><td>L<td>24</tr><tr><td><td>2<td>S<td></tr><tr><td><td></tr></table>""")
    assert lines(page) == ["Item | Size | | Price", "Tent | | L | 24", "| 2 | S"]


def test_lines_of_highlighted_code_stay_apart(visit: "Visit") -> None:
    page = visit.show(
        "<pre><b>def</b> f(x):\n    <b>return</b> <i>x</i>\n<b>print</b>(<i>1</i>)\n\n"
        "<i>a</i> = 2</pre>"
    )
    assert lines(page) == ["def f(x):", "    return x", "print(1)", "", "a = 2"]


def test_code_keeps_its_indentation_its_blank_lines_and_its_equal_lines(visit: "Visit") -> None:
    page = visit.show("""<p>See  this:</p><pre>

if x[0]:
\tx += 1
\tx += 1


\ty  =  <a href=/y>f</a>  (x)
</pre><p>and <code style="white-space:pre">a  b</code>  too</p>
        <div style="white-space:pre-line">one   two
        three</div>""")
    assert lines(page) == [
        *("See this:", "if x⟦0⟧:", "    x += 1", "    x += 1", "", "    y  ="),
        *("link f [1]", "(x)", "and a b too", "one two", "three"),
    ]
    assert page.nodes[2].box.y < page.nodes[3].box.y


def test_only_the_lines_of_code_in_view_are_read(visit: "Visit") -> None:
    code = "\n".join(f"line {number}" for number in range(200))
    first = lines(visit.show(f"<pre>{code}</pre>"))
    assert first[0] == "line 0" and first[-1] == "more below" and len(first) < 60
    assert "line 0" not in lines(visit.act("scroll [down]"))


def test_rows_of_numbered_code_keep_its_indentation(visit: "Visit") -> None:
    page = visit.show("""<table><tr><td>1<td style="white-space:pre">if a:<tr><td>2<td
        style="white-space:pre">    b()</table><table><tr><td><pre>1
2</pre><td><pre>if c:
    d()</pre></table>""")
    assert lines(page) == ["1 | if a:", "2 |     b()", "1", "2", "if c:", "    d()"]


def test_text_that_the_page_strikes_through_is_marked(visit: "Visit") -> None:
    page = visit.show("""<p>Price <del>10</del> <ins>8</ins> or <s>old words</s></p>
        <a href=/x>Tent <s>24</s> 20</a><table><tr><td><del>5</del> 4<td>x</table>""")
    assert lines(page) == [
        "Price ~~10~~ 8 or ~~old words~~",
        "link Tent ~~24~~ 20 [1]",
        "~~5~~ 4 | x",
    ]


def test_cells_without_a_row_and_rows_of_other_kinds_are_read(visit: "Visit") -> None:
    page = visit.show("""<div id=d></div><div id=e></div><script>
        const cell = document.createElement("td"), field = document.createElement("input");
        cell.append(field);
        d.append(cell);
        const row = document.createElementNS("urn:x", "tr"), inner = document.createElement("td");
        inner.textContent = "12";
        row.append(inner, "words");
        e.append(row);
        const root = document.body.appendChild(document.createElement("p"))
          .appendChild(document.createElement("span")).attachShadow({mode: "open"});
        root.append(cell.cloneNode(true));</script>""")
    read = lines(page)
    assert (
        {"textbox [1]", "textbox [2]"} <= set(read) and "12" in str(read) and "words" in str(read)
    )
