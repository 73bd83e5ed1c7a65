"""Text inside images."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageDraw, ImageFont

from agentkv_env.browser import Browser
from agentkv_env.ocr import Ocr, OcrMissing, image_key
from agentkv_env.page import Page

if TYPE_CHECKING:
    from conftest import Pages, Visit

Draw = Callable[..., bytes]


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def read(page: Page) -> list[tuple[str, tuple[str, ...]]]:
    return [(node.name, node.states) for node in page.nodes if node.kind == "ocr"]


def test_images_are_read_together_and_words_go_to_their_own(poster: Draw) -> None:
    ocr = Ocr()
    images = {
        "plain": opened(poster("CODE SAVE15\nvalid till Friday", size=(320, 110))),
        "dark": opened(poster("TOTAL 42.50", "white", "navy")),
        "tag": opened(poster("Price 18.99", "black", "gold", (200, 70))),
        "faint": opened(poster("hardly seen", "#d8d8d8")),
        "empty": Image.new("RGB", (200, 100), "white"),
    }
    found = ocr.read(images)
    assert ocr.num_runs == 1
    assert {key: [line.text for line in lines] for key, lines in found.items()} == {
        "plain": ["CODE SAVE15", "valid till Friday"],
        "dark": ["TOTAL 42.50"],
        "tag": ["Price 18.99"],
        "faint": ["hardly seen"],
        "empty": [],
    }
    assert [line.faint for lines in found.values() for line in lines] == [False] * 4 + [True]
    first, second = found["plain"]
    assert first.y < second.y and 0 < first.x < 0.1


def test_text_on_colored_grounds_is_read(poster: Draw) -> None:
    papers = [
        *(("black", f"rgb({level},{level},{level})") for level in (120, 150, 180, 195)),
        *(("white", f"rgb({level},{level},{level})") for level in (50, 80, 105)),
        *(("white", paper) for paper in ("#007bff", "#dc3545", "#343a40", "#28a745")),
        *(("black", paper) for paper in ("orange", "skyblue", "limegreen")),
    ]
    images = {f"{ink} on {paper}": opened(poster("Sale 4821", ink, paper)) for ink, paper in papers}
    found = Ocr().read(images)
    unread = {key for key, lines in found.items() if [line.text for line in lines] != ["Sale 4821"]}
    assert not unread


def test_a_card_on_a_dark_page_and_a_button_on_the_card_are_read() -> None:
    image = Image.new("RGB", (360, 240), "#222233")
    draw, font = ImageDraw.Draw(image), ImageFont.truetype("DejaVuSans.ttf", 20)
    draw.text((20, 16), "Evening paper", fill="#c8c8d0", font=font)
    draw.rectangle((20, 60, 340, 220), fill="white")
    draw.text((36, 76), "Twelve issues", fill="black", font=font)
    draw.rounded_rectangle((36, 150, 220, 190), 6, fill="#007bff")
    draw.text((50, 157), "Order now", fill="white", font=font)
    read = Ocr().read({"page": image})["page"]
    assert [line.text for line in read] == ["Evening paper", "Twelve issues", "Order now"]


def test_a_cold_cache_reads_and_a_warm_one_does_not(poster: Draw, tmp_path: Path) -> None:
    image = opened(poster("WARM 77"))
    key = image_key(image)
    first = Ocr(tmp_path)
    lines = first.read({key: image})[key]
    assert first.num_runs == 1 and lines[0].text == "WARM 77"
    second = Ocr(tmp_path)
    assert second.read({key: image})[key] == lines
    assert second.num_runs == 0
    for file in tmp_path.rglob("*.json"):
        file.write_text("damaged")
    third = Ocr(tmp_path)
    assert third.read({key: image})[key] == lines
    assert third.num_runs == 1


def test_without_tesseract_there_is_a_clear_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert Ocr.find() is None
    with pytest.raises(OcrMissing, match="install tesseract-ocr"):
        Ocr()


@pytest.mark.browser
def test_a_line_that_repeats_the_name_of_its_image_is_left_out(
    browser: Browser, pages: "Pages", poster: Draw
) -> None:
    html = """<img src=/a alt="Code: save15"><img src=/a alt=Poster>
        <a href=/x><img src=/a alt="CODE SAVE15"></a>"""
    pages.set({"/": html, "/a": poster("CODE SAVE15")})
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], ocr=Ocr()) as session:
        session.open(pages.origin() + "/")
        assert [(node.kind, node.name) for node in session.observe().nodes] == [
            ("text", "Code: save15"),
            ("text", "Poster"),
            ("ocr", "CODE SAVE15"),
            ("element", "CODE SAVE15"),
        ]


@pytest.mark.browser
def test_lines_stand_after_their_image_in_viewport_pixels(
    browser: Browser, pages: "Pages", poster: Draw
) -> None:
    pages.set(
        {
            "/": """<body style="margin:0"><p style="margin:0;height:30px">Before</p>
            <img src=/a alt=Poster style="display:block;width:640px">
            <a href=/x style="display:block"><img src=/b alt=Receipt></a>
            <div style="width:320px;height:80px;background:url(/c)"></div>
            <canvas id=k width=320 height=60 style="display:block"></canvas><p>After</p>
            <img src=/a width=30 height=10><script>const pen = k.getContext('2d');
            pen.font = '24px DejaVu Sans'; pen.fillText('Drawn by script', 10, 40)</script>""",
            "/a": poster("CODE SAVE15"),
            "/b": poster("TOTAL 42.50", "white", "navy"),
            "/c": poster("Grand opening"),
        }
    )
    ocr = Ocr()
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], ocr=ocr) as session:
        session.open(pages.origin() + "/")
        page = session.observe()
        assert [(node.kind, node.role, node.name) for node in page.nodes] == [
            ("text", "text", "Before"),
            ("text", "image", "Poster"),
            ("ocr", "text", "CODE SAVE15"),
            ("element", "link", "Receipt"),
            ("ocr", "text", "TOTAL 42.50"),
            ("text", "image", ""),
            ("ocr", "text", "Grand opening"),
            ("element", "canvas", ""),
            ("ocr", "text", "Drawn by script"),
            ("text", "text", "After"),
        ]
        box = page.nodes[2].box
        assert 15 <= box.x <= 30 and 65 <= box.y <= 90 and 300 <= box.width <= 360
        session.observe()
        session.open(pages.origin() + "/")
        assert read(session.observe()) == read(page)
        assert ocr.num_runs == 1


@pytest.mark.browser
def test_pixels_of_another_origin_are_read_from_the_screen(
    browser: Browser, pages: "Pages", poster: Draw
) -> None:
    url = f"{pages.origin('partner')}/a"
    pages.set({"/": f"<img src={url}>", "/a": poster("FOREIGN 12")})
    ocr = Ocr()
    hosts = [f"{name}.localhost:{pages.port}" for name in ("shop", "partner")]
    with browser.session(hosts=hosts, ocr=ocr) as session:
        session.open(pages.origin() + "/")
        assert read(session.observe()) == [("FOREIGN 12", ())]
        assert read(session.observe()) == [("FOREIGN 12", ())]
        assert ocr.num_runs == 1


@pytest.mark.browser
def test_a_session_without_ocr_says_so_once(visit: "Visit", poster: Draw) -> None:
    page = visit.show("<img src=/a alt=Poster>", a=poster("CODE SAVE15"))
    assert page.notices == ("text inside images is not read in this session",)
    assert read(page) == []
    assert visit.session.observe().notices == ()
