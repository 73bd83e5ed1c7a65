"""Frames that are scaled, turned, zoomed, covered or out of view."""

from typing import TYPE_CHECKING

import pytest

from agentkv_env.errors import ActionFailed

if TYPE_CHECKING:
    from conftest import Visit

pytestmark = pytest.mark.browser

# The page around a frame takes the place of a press from it as its title.
INNER = """<body style="margin:0"><style>button {position:absolute;width:60px;height:20px}</style>
    <script>const tell = event => top.postMessage(
      event.type + " " + event.target.id + " " + event.offsetX + "," + event.offsetY, "*")</script>
    <canvas id=map width=40 height=40 aria-label=Map onclick="tell(event)"></canvas>
    <button id=pay style="left:100px;top:50px" onclick="tell(event)"
      onmouseover="tell(event)">Pay</button>
    <button id=low style="left:20px;top:110px" onmousedown="tell(event)" onmouseup="tell(event)">Low
    </button>"""
OUTER = (
    """<body style="margin:0"><script>onmessage = event => document.title = event.data</script>"""
)


def framed(source: str, style: str, around: str = "") -> str:
    return f"""{OUTER}<div style="margin:120px;{around}"><iframe src="{source}" style="width:200px;
        height:150px;border:2px solid;{style}"></iframe></div>"""


@pytest.mark.sample("values")
@pytest.mark.parametrize("source", ["/inner", "http://partner.localhost:{port}/inner"])
@pytest.mark.parametrize(
    ("style", "around"),
    [
        ("transform:scale(0.5)", ""),
        ("", "transform:scale(1.5) rotate(90deg);width:204px"),
        ("rotate:30deg;scale:1.2 0.8;padding:9px", "zoom:0.8"),
        ("zoom:1.5", "transform:matrix(0.8,0.2,-0.1,0.9,30,10);transform-origin:0 0"),
        ("transform:scale(-1,1)", "rotate:y 40deg"),
    ],
)
def test_presses_in_a_scaled_or_turned_frame_land_where_they_are_meant(
    style: str, around: str, source: str, visit: "Visit"
) -> None:
    visit.show(framed(source, style, around), inner=INNER)
    assert visit.act("click [{pay}]", pay="Pay").title.startswith("click pay ")
    assert visit.act("click [{map}] [25%,75%]", map="Map").title == "click map 10,30"
    assert visit.act("hover [{pay}]", pay="Pay").title.startswith("mouseover pay ")
    page = visit.act("drag [{low}] [{low}]", low="Low")
    assert page.title.startswith("mouseup low ")


def test_boxes_of_a_scaled_frame_are_in_pixels_of_the_viewport(visit: "Visit") -> None:
    page = visit.show(framed("/inner", "scale:2;transform-origin:0 0"), inner=INNER)
    box = next(node.box for node in page.nodes if node.name == "Pay")
    assert (box.x, box.y, box.width, box.height) == (324, 224, 120, 40)
    visit.act("click [{map}] [20,60]", map="Map")
    assert visit.session.observe().title == "click map 10,30"


@pytest.mark.sample("values")
@pytest.mark.parametrize("source", ["/inner", "http://partner.localhost:{port}/inner"])
@pytest.mark.parametrize("outer", ["/middle", "http://partner.localhost:{port}/middle"])
def test_frames_in_frames_are_pressed_through_all_their_transforms(
    source: str, outer: str, visit: "Visit"
) -> None:
    middle = f"""<body style="margin:0"><iframe src="{source}" style="width:200px;height:150px;
        border:0;transform:scale(0.8) rotate(10deg)"></iframe>"""
    visit.show(framed(outer, "zoom:1.4;rotate:-20deg"), middle=middle, inner=INNER)
    assert visit.act("click [{pay}]", pay="Pay").title.startswith("click pay ")


@pytest.mark.parametrize("source", ["/inner", "http://partner.localhost:{port}/inner"])
def test_what_covers_a_frame_covers_its_elements(source: str, visit: "Visit") -> None:
    cover = "<b style='position:fixed;left:220px;top:150px;width:90px;height:60px'>Wait</b>"
    visit.show(framed(source, "transform:scale(1.01)") + cover, inner=INNER)
    with pytest.raises(ActionFailed, match='covered by "b Wait"'):
        visit.act("click [{pay}]", pay="Pay")
    assert visit.act("click [{map}]", map="Map").title == "click map 20,20"


def test_a_frame_in_perspective_is_refused_and_not_missed(visit: "Visit") -> None:
    for style, around in (
        ("transform:perspective(400px) rotateY(40deg)", ""),
        ("rotate:y 40deg", "perspective:400px"),
        ("translate:0 0 100px", "perspective:400px"),
    ):
        visit.show(framed("/inner", style, around), inner=INNER)
        with pytest.raises(ActionFailed, match="drawn in perspective"):
            visit.act("click [{pay}]", pay="Pay")
    visit.show(framed("/inner", "rotate:y 40deg", "perspective:none"), inner=INNER)
    assert visit.act("click [{pay}]", pay="Pay").title.startswith("click pay ")


def test_an_element_in_a_covered_frame_says_so(visit: "Visit") -> None:
    cover = "<b style='position:fixed;left:220px;top:150px;width:90px;height:60px'>Wait</b>"
    page = visit.show(framed("/inner", "") + cover, inner=INNER)
    assert {node.name: node.states for node in page.nodes if node.role == "button"} == {
        "Pay": ("covered",),
        "Low": (),
    }


@pytest.mark.parametrize("source", ["/inner", "http://partner.localhost:{port}/inner"])
def test_a_frame_out_of_the_window_is_scrolled_to(source: str, visit: "Visit") -> None:
    html = framed(source, "scale:0.9") + "<div style='height:3000px'></div>"
    page = visit.show(html, inner=INNER)
    number = next(node.id for node in page.nodes if node.name == "Low")
    visit.session.page.evaluate("scrollTo(0, 2000)")
    page = visit.act(f"click [{number}]")
    assert page.title.startswith("mouseup low ") and page.pixels_above < 600


def test_areas_of_the_map_of_a_scaled_image_are_pressed(visit: "Visit") -> None:
    page = visit.show("""<body style="margin:0"><img usemap=#m alt=Island width=100 height=100
        style="transform:scale(0.5);transform-origin:0 0"><map name=m><area shape=rect
        coords="60,60,100,100" alt=South href=# onclick="document.title = 'south'"></map>""")
    box = next(node.box for node in page.nodes if node.name == "South")
    assert (box.x, box.y, box.width, box.height) == (30, 30, 20, 20)
    assert visit.act("click [{south}]", south="South").title == "south"
