"""Pages with tables, grids and lists of many shapes, and the rows that a chat model reads of them.

Print how many tokens each page takes with a line for each row, and with a line for each node:

    python -m tests.env.row_pages TOKENIZER [TOKENIZER]
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RowPage:
    """A page and all lines of its rows; numbers are those of its elements, in order."""

    name: str
    html: str
    rows: tuple[str, ...]


def _table(head: str, *rows: str, attributes: str = "") -> str:
    """Return a table; bars separate the cells of a row."""

    def row(cells: str, tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells.split("|"))

    body = "".join(row(each, "td") for each in rows)
    return f"<table {attributes}><thead>{row(head, 'th')}</thead><tbody>{body}</tbody></table>"


SHIP = "<button>Ship</button>"
ORDERS = (
    "1043|Ada Byron|Open|$310.00",
    "1044|Grace Hopper|Open|$42.50",
    "1045|Alan Turing|Paid|$18.00",
    "1046|Edsger Dijkstra|Open|$99.90",
    "1047|Barbara Liskov|Paid|$7.25",
)


def _repeat(template: str, *values: str) -> str:
    """Return a template for each value, whose parts between bars replace `{0}`, `{1}` ..."""
    return "".join(template.format(*each.split("|")) for each in values)


PAGES = (
    RowPage(
        "orders",
        "<h1>Orders</h1>"
        + _table("Order|Customer|Status|Total|", *(f"{each}|{SHIP}" for each in ORDERS)),
        (),
    ),
    RowPage(
        "links in cells",
        _table(
            "Name|Team|",
            *_repeat("<a href=#{0}>{0}</a>|{1}|<a href=#e{0}>Edit</a> <a href=#d{0}>Delete</a>;", "Ada|Core", "Grace|Tools", "Alan|Web").split(";")[:-1],
        ),
        (),
    ),
    RowPage(
        "cells that span rows and columns",
        "<table><tr><th>Kind<th>Fruit<th>Price<th>Buy"
        "<tr><td rowspan=2>Sweet<td>Apple<td>$3<td><button>Buy</button>"
        "<tr><td>Pear<td>$5<td><button>Buy</button>"
        "<tr><td rowspan=2>Sour<td>Lemon<td>$1<td><button>Buy</button>"
        "<tr><td>Lime<td>$2<td><button>Buy</button>"
        "<tr><td colspan=2>Total<td>$11<td><button>Buy all</button></table>",
        (),
    ),
    RowPage(
        "table in a cell",
        "<table border=1>" + _repeat(
            "<tr><td>{0}</td><td><table><tr><td>{1}</td><td><button>Move</button></td></tr>"
            "<tr><td>{2}</td><td><button>Move</button></td></tr></table></td></tr>",
            "Hall|Chair|Lamp", "Kitchen|Stove|Sink",
        ) + "</table>",
        (),
    ),
    RowPage(
        "list of cards",
        "<ul>" + _repeat(
            "<li><h3><a href=#{0}>{0}</a></h3><p>{1}</p><button>Add to cart</button></li>",
            "Blue Kayak|$310.00", "Red Kayak|$290.00", "Paddle|$42.50",
        ) + "</ul>",
        (),
    ),
    RowPage(
        "cards of boxes without roles",
        "<div>" + _repeat(
            "<div class='card'><div>{0}</div><div>{1}</div><button>Reserve</button></div>",
            "Room 12|$80 a night", "Room 14|$95 a night", "Room 20|$120 a night",
        ) + "</div>",
        (),
    ),
    RowPage(
        "ARIA grid of boxes",
        "<div role=grid><div role=row><div role=columnheader>File</div>"
        "<div role=columnheader>Size</div><div role=columnheader>Share</div></div>" + _repeat(
            "<div role=row><div role=gridcell>{0}</div><div role=gridcell>{1}</div>"
            "<div role=gridcell><button>Share</button></div></div>",
            "notes.txt|2 KB", "plan.pdf|310 KB", "photo.png|4 MB",
        ) + "</div>",
        (),
    ),
    RowPage(
        "list of terms",
        "<dl>" + _repeat(
            "<dt>{0}</dt><dd>{1} <button>Change</button></dd>",
            "Name|Ada Byron", "Email|ada@example.com", "Plan|Team, yearly",
        ) + "</dl>",
        (),
    ),
    RowPage(
        "headers that sort",
        "<table><thead><tr><th><button>Order</button><th><button>Total</button><th>Action</thead>"
        + _repeat("<tr><td>{0}<td>{1}<td><button>Ship</button>", "1043|$310.00", "1044|$42.50", "1045|$18.00")
        + "</table>",
        (),
    ),
    RowPage(
        "fields in rows",
        _table(
            "Item|Quantity|Gift|Size",
            *(
                f"{item}|<input type=number value={n}>|<input type=checkbox {state}>|"
                "<select><option>Small<option selected>Large</select>"
                for item, n, state in (("Tea", 2, "checked"), ("Coffee", 1, ""), ("Cocoa", 5, ""))
            ),
        ),
        (),
    ),
    RowPage(
        "rows to select",
        "<table><tr><th><input type=checkbox aria-label='All'><th>From<th>Subject" + _repeat(
            "<tr><td><input type=checkbox aria-label='Select'><td>{0}<td><a href=#{0}>{1}</a>",
            "Ada|Engine notes", "Grace|A moth", "Alan|Can it think?",
        ) + "</table>",
        (),
    ),
    RowPage(
        "a header that sticks, drawn twice",
        "<style>.stuck {{ position: sticky; top: 0 }}</style>".replace("{{", "{").replace("}}", "}")
        + _table("City|People|", attributes="class=stuck")
        + _table("City|People|", *_repeat("{0}|{1}|<button>Open</button>;", "Oslo|700000", "Bergen|290000", "Bodø|53000").split(";")[:-1]),
        (),
    ),
    RowPage(
        "empty cells",
        _table("Day|Early|Late|", *(f"{each}|<button>Edit</button>" for each in ("Mon|Ada|", "Tue||Alan", "Wed||"))),
        (),
    ),
    RowPage(
        "cells of several lines",
        "<table>" + _repeat(
            "<tr><td>{0}<br>{1}<td>{2}<br><small>{3}</small><td><button>Track</button>",
            "Ada Byron|12 High Street|Express|by Friday", "Grace Hopper|4 Navy Yard|Standard|by Tuesday",
            "Alan Turing|Hut 8|Pick-up|any time",
        ) + "</table>",
        (),
    ),
    RowPage(
        "a table for layout",
        "<table><tr><td colspan=2><h2>Sign in</h2><tr><td>Name<td><input>"
        "<tr><td>Code<td><input><tr><td><label><input type=checkbox> Stay signed in</label>"
        "<td><button>Sign in</button></table>",
        (),
    ),
    RowPage(
        "a table that scrolls",
        "<div style='height:90px; width:300px; overflow:auto'>"
        + _table("Id|Who|", *(f"{n}|Person {n}|<button>Call</button>" for n in range(1, 12)))
        + "</div>",
        (),
    ),
    RowPage(
        "rows in a shadow root",
        "<div id=host></div><script>host.attachShadow({{mode: 'open'}}).innerHTML = `{}`</script>"
        .replace("{{", "{").replace("}}", "}").replace("{}", _table("Key|Value|", *_repeat("{0}|{1}|<button>Copy</button>;", "alpha|1", "beta|2", "gamma|3").split(";")[:-1])),
        (),
    ),
    RowPage(
        "rows in a frame",
        "<iframe width=500 height=200 srcdoc=\"" + _table("Key|Value|", *_repeat("{0}|{1}|<button>Copy</button>;", "alpha|1", "beta|2", "gamma|3").split(";")[:-1]) + "\"></iframe>",
        (),
    ),
    RowPage(
        "a grid of a style sheet",
        "<div style='display:grid; grid-template-columns: 1fr 1fr auto auto'>" + _repeat(
            "<div>{0}</div><div>{1}</div><div>{2}</div><div><button>Book</button></div>",
            "09:10|Oslo|$59", "11:45|Bergen|$72", "17:30|Bodø|$110",
        ) + "</div>",
        (),
    ),
    RowPage(
        "rows of a table of boxes",
        "<style>.row { display: table-row } .row > * { display: table-cell; padding: 4px }</style>"
        + _repeat("<div class=row><div>{0}</div><div>{1}</div><div><a href=#{0}>Details</a></div></div>", "Router|online", "Printer|offline", "Camera|online"),
        (),
    ),
    RowPage(
        "tables in items of a list",
        "<ol>" + _repeat("<li><b>{0}</b>" + _table("Part|Left|", "Bolt|{1}|<button>Order</button>", "Nut|{2}|<button>Order</button>"), "Shelf A|40|12", "Shelf B|7|90") + "</ol>",
        (),
    ),
    RowPage(
        "a calendar",
        "<table><caption>May 2026</caption><tr><th>Mo<th>Tu<th>We<th>Th<th>Fr<th>Sa<th>Su<tr>"
        + "<td>" * 4 + "".join(f"<td><button>{day}</button>" + ("<tr>" if day in (3, 10, 17) else "") for day in range(1, 25)) + "</table>",
        (),
    ),
    RowPage(
        "rows to press",
        "<style>tr { cursor: pointer }</style>" + _table("Train|From|To", "R10|Oslo|Lillehammer", "F4|Oslo|Bergen", "F6|Trondheim|Oslo"),
        (),
    ),
    RowPage(
        "pictures in rows",
        "<table>" + _repeat("<tr><td><img width=40 height=40 alt='{0}' src='data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7'><td>{1}<td><button>Follow</button>", "Portrait of Ada|Ada Byron", "Portrait of Alan|Alan Turing") + "</table>",
        (),
    ),
    RowPage(
        "comments with votes",
        _repeat("<article><a href=#{0}>{0}</a><p>{1}</p><button>Up</button> <button>Down</button></article>", "ann|It floats.", "bob|It sinks after a while.", "cyd|Mine is red."),
        (),
    ),
)
