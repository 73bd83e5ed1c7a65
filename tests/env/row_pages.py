"""Pages with tables, grids and lists of many shapes, and the rows that chat models read of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RowPage:
    """A page and all lines of its rows."""

    name: str
    html: str
    rows: tuple[str, ...]


def _each(template: str, *values: str) -> str:
    """Return a template for each value, whose parts between bars replace `{0}`, `{1}` ..."""
    return "".join(template.format(*each.split("|")) for each in values)


def _table(head: str, row: str, *values: str) -> str:
    """Return a table; bars separate cells, and `_each` fills its rows."""
    cells = "<td>" + row.replace("|", "<td>")
    header = "".join(f"<th>{cell}" for cell in head.split("|"))
    return f"<table><thead><tr>{header}</thead><tbody>{_each(f'<tr>{cells}', *values)}</table>"


_SHIP = "<button>Ship</button>"
_PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
_KEYS = _table("Key|Value|", "{0}|{1}|<button>Copy</button>", "alpha|1", "beta|2", "gamma|3")
_KEY_ROWS = (
    "columns Key | Value",
    "row alpha | 1 | [1] Copy",
    "row beta | 2 | [2] Copy",
    "row gamma | 3 | [3] Copy",
)

PAGES = (
    RowPage(
        "orders",
        "<h1>Orders</h1>"
        + _table(
            "Order|Customer|Status|Total|",
            "{0}|{1}|{2}|{3}|" + _SHIP,
            "1043|Ada Byron|Open|$310.00",
            "1044|Grace Hopper|Open|$42.50",
            "1045|Alan Turing|Paid|$18.00",
            "1046|Edsger Dijkstra|Open|$99.90",
            "1047|Barbara Liskov|Paid|$7.25",
        ),
        (
            "columns Order | Customer | Status | Total",
            "row 1043 | Ada Byron | Open | $310.00 | [1] Ship",
            "row 1044 | Grace Hopper | Open | $42.50 | [2] Ship",
            "row 1045 | Alan Turing | Paid | $18.00 | [3] Ship",
            "row 1046 | Edsger Dijkstra | Open | $99.90 | [4] Ship",
            "row 1047 | Barbara Liskov | Paid | $7.25 | [5] Ship",
        ),
    ),
    RowPage(
        "links in cells",
        _table(
            "Name|Team|",
            "<a href=#{0}>{0}</a>|{1}|<a href=#e>Edit</a> <a href=#d>Delete</a>",
            "Ada|Core",
            "Grace|Tools",
            "Alan|Web",
        ),
        (
            "columns Name | Team",
            "row [1] Ada | Core | [2] Edit; [3] Delete",
            "row [4] Grace | Tools | [5] Edit; [6] Delete",
            "row [7] Alan | Web | [8] Edit; [9] Delete",
        ),
    ),
    RowPage(
        "cells that span rows and columns",
        "<table><tr><th>Kind<th>Fruit<th>Price<th>Buy"
        + _each(
            "<tr><td rowspan=2>{0}<td>{1}<td>{2}<td><button>Buy</button>"
            "<tr><td>{3}<td>{4}<td><button>Buy</button>",
            "Sweet|Apple|$3|Pear|$5",
            "Sour|Lemon|$1|Lime|$2",
        )
        + "<tr><td colspan=2>Total<td>$11<td><button>Buy all</button></table>",
        (
            "columns Kind | Fruit | Price | Buy",
            "row Sweet | Apple | $3 | [1] Buy",
            "row  | Pear | $5 | [2] Buy",
            "row Sour | Lemon | $1 | [3] Buy",
            "row  | Lime | $2 | [4] Buy",
            "row Total |  | $11 | [5] Buy all",
        ),
    ),
    RowPage(
        "tables in cells",
        "<table>"
        + _each(
            "<tr><td>{0}<td><table><tr><td>{1}<td><button>Move</button>"
            "<tr><td>{2}<td><button>Move</button></table>",
            "Hall|Chair|Lamp",
            "Kitchen|Stove|Sink",
        )
        + "</table>",
        (
            "row Chair | [1] Move",
            "row Lamp | [2] Move",
            "row Stove | [3] Move",
            "row Sink | [4] Move",
        ),
    ),
    RowPage(
        "list of cards",
        "<ul>"
        + _each(
            "<li><h3><a href=#x>{0}</a></h3><p>{1}</p><button>Add to cart</button>",
            "Blue Kayak|$310.00",
            "Red Kayak|$290.00",
            "Paddle|$42.50",
        )
        + "</ul>",
        (
            "row [1] Blue Kayak | $310.00 | [2] Add to cart",
            "row [3] Red Kayak | $290.00 | [4] Add to cart",
            "row [5] Paddle | $42.50 | [6] Add to cart",
        ),
    ),
    RowPage(
        "boxes alike",
        _each(
            "<div class='card'><div>{0}</div><div>{1}</div><button>Reserve</button></div>",
            "Room 12|$80 a night",
            "Room 14|$95 a night",
            "Room 20|$120 a night",
        ),
        (
            "row Room 12 | $80 a night | [1] Reserve",
            "row Room 14 | $95 a night | [2] Reserve",
            "row Room 20 | $120 a night | [3] Reserve",
        ),
    ),
    RowPage(
        "ARIA grid of boxes",
        "<div role=grid><div role=row><div role=columnheader>File</div>"
        "<div role=columnheader>Size</div><div role=columnheader>Share</div></div>"
        + _each(
            "<div role=row><div role=gridcell>{0}</div><div role=gridcell>{1}</div>"
            "<div role=gridcell><button>Share</button></div></div>",
            "notes.txt|2 KB",
            "plan.pdf|310 KB",
            "photo.png|4 MB",
        )
        + "</div>",
        (
            "columns File | Size | Share",
            "row notes.txt | 2 KB | [1] Share",
            "row plan.pdf | 310 KB | [2] Share",
            "row photo.png | 4 MB | [3] Share",
        ),
    ),
    RowPage(
        "ARIA rows without a box",
        "<div role=table style='display: grid; grid-template-columns: auto auto auto'>"
        + _each(
            "<div role=row style='display: contents'><div role=cell>{0}</div><div role=cell>{1}"
            "</div><div role=cell><a href=#x>Open</a></div></div>",
            "Oslo|4 C",
            "Bergen|9 C",
            "Tromsø|-3 C",
        )
        + "</div>",
        (
            "row Oslo | 4 C | [1] Open",
            "row Bergen | 9 C | [2] Open",
            "row Tromsø | -3 C | [3] Open",
        ),
    ),
    RowPage(
        "list of terms",
        "<dl>"
        + _each(
            "<dt>{0}<dd>{1} <button>Change</button>",
            "Name|Ada Byron",
            "Email|ada@example.com",
            "Plan|Team, yearly",
        )
        + "</dl>",
        (
            "row Name | Ada Byron; [1] Change",
            "row Email | ada@example.com; [2] Change",
            "row Plan | Team, yearly; [3] Change",
        ),
    ),
    RowPage(
        "headers that sort",
        _table(
            "<button>Order</button>|<button>Total</button>|Action",
            "{0}|{1}|" + _SHIP,
            "1043|$310.00",
            "1044|$42.50",
            "1045|$18.00",
        ),
        (
            "columns [1] Order | [2] Total | Action",
            "row 1043 | $310.00 | [3] Ship",
            "row 1044 | $42.50 | [4] Ship",
            "row 1045 | $18.00 | [5] Ship",
        ),
    ),
    RowPage(
        "fields in rows",
        _table(
            "Item|Quantity|Gift|Size",
            "{0}|<input type=number value={1}>|<input type=checkbox {2}>|"
            "<select><option>Small<option selected>Large</select>",
            "Tea|2|checked",
            "Coffee|1|",
            "Cocoa|5|",
        ),
        (
            "columns Item | Quantity | Gift | Size",
            "row Tea | [1] textbox 'Tea, Quantity' value: 2 | "
            "[2] checkbox 'Tea, Gift' checked | "
            "[3] combobox 'Tea, Size' value: Large options: (Small | Large)",
            "row Coffee | [4] textbox 'Coffee, Quantity' value: 1 | "
            "[5] checkbox 'Coffee, Gift' | "
            "[6] combobox 'Coffee, Size' value: Large options as above",
            "row Cocoa | [7] textbox 'Cocoa, Quantity' value: 5 | "
            "[8] checkbox 'Cocoa, Gift' | "
            "[9] combobox 'Cocoa, Size' value: Large options as above",
        ),
    ),
    RowPage(
        "rows to select",
        _table(
            "<input type=checkbox aria-label=All>|From|Subject",
            "<input type=checkbox aria-label=Select>|{0}|<a href=#x>{1}</a>",
            "Ada|Engine notes",
            "Grace|A moth",
            "Alan|Can it think?",
        ),
        (
            "columns [1] checkbox 'All' | From | Subject",
            "row [2] checkbox 'Select' | Ada | [3] Engine notes",
            "row [4] checkbox 'Select' | Grace | [5] A moth",
            "row [6] checkbox 'Select' | Alan | [7] Can it think?",
        ),
    ),
    RowPage(
        "header drawn twice",
        "<div style='position: sticky; top: 0'>"
        + _table("City|People|", "")
        + "</div>"
        + _table(
            "City|People|",
            "{0}|{1}|<button>Open</button>",
            "Oslo|700000",
            "Bergen|290000",
            "Bodø|53000",
        ),
        (
            "columns City | People",
            "columns City | People",
            "row Oslo | 700000 | [1] Open",
            "row Bergen | 290000 | [2] Open",
            "row Bodø | 53000 | [3] Open",
        ),
    ),
    RowPage(
        "empty cells",
        _table(
            "Day|Early|Late|", "{0}|{1}|{2}|<button>Edit</button>", "Mon|Ada|", "Tue||Alan", "Wed||"
        ),
        (
            "columns Day | Early | Late",
            "row Mon | Ada |  | [1] Edit",
            "row Tue |  | Alan | [2] Edit",
            "row Wed |  |  | [3] Edit",
        ),
    ),
    RowPage(
        "cells of several lines",
        "<table>"
        + _each(
            "<tr><td>{0}<br>{1}<td>{2}<br><small>{3}</small><td><button>Track</button>",
            "Ada Byron|12 High Street|Express|by Friday",
            "Grace Hopper|4 Navy Yard|Standard|by Tuesday",
            "Alan Turing|Hut 8|Pick-up|any time",
        )
        + "</table>",
        (
            "row Ada Byron; 12 High Street | Express; by Friday | [1] Track",
            "row Grace Hopper; 4 Navy Yard | Standard; by Tuesday | [2] Track",
            "row Alan Turing; Hut 8 | Pick-up; any time | [3] Track",
        ),
    ),
    RowPage(
        "cells with bars",
        "<table>"
        + _each(
            "<tr><td>{0}<td>cat log &#124; sort<td><button>Run</button>", "Job 7", "Job 8", "Job 9"
        )
        + "</table>",
        (
            'row Job 7 | "cat log | sort" | [1] Run',
            'row Job 8 | "cat log | sort" | [2] Run',
            'row Job 9 | "cat log | sort" | [3] Run',
        ),
    ),
    RowPage(
        "table for layout",
        "<table><tr><td colspan=2><h2>Sign in</h2><tr><td>Name<td><input><tr><td>Code<td><input>"
        "<tr><td><label><input type=checkbox> Stay signed in</label>"
        "<td><button>Sign in</button></table>",
        (
            "row Name | [1] textbox 'Name'",
            "row Code | [2] textbox 'Code'",
            "row [3] checkbox 'Stay signed in' | [4] Sign in",
        ),
    ),
    RowPage(
        "table that scrolls down",
        "<div style='height: 90px; overflow: auto'>"
        + _table(
            "Id|Who|",
            "{0}|Person {0}|<button>Call</button>",
            *(str(number) for number in range(1, 12)),
        )
        + "</div>",
        (
            "columns Id | Who",
            "row 1 | Person 1 | [2] Call",
            "row 2 | Person 2 | [3] Call",
            "row 3 | Person 3 | [4] Call",
        ),
    ),
    RowPage(
        "table that scrolls sideways",
        "<div style='width: 200px; overflow: auto; white-space: nowrap'>"
        + _table(
            "Id|Who|Note|",
            "<button>Pick</button>|{0} <a href=#x>more</a>|"
            "<div style='width: 300px'></div>|<a href=#x>{1}</a>",
            "Ada|late",
            "Grace|early",
            "Alan|away",
        )
        + "</div>",
        (
            "columns Id | Who | Note",
            "row [1] Pick | Ada; [2] more",
            "row [3] Pick | Grace; [4] more",
            "row [5] Pick | Alan; [6] more",
        ),
    ),
    RowPage(
        "rows in a shadow root",
        "<div id=host></div><script>host.attachShadow({mode: 'closed'}).innerHTML = "
        f"`{_KEYS}`</script>",
        _KEY_ROWS,
    ),
    RowPage(
        "rows in a frame", f'<iframe width=500 height=200 srcdoc="{_KEYS}"></iframe>', _KEY_ROWS
    ),
    RowPage(
        "grid of a style sheet",
        "<div style='display: grid; grid-template-columns: 1fr 1fr auto auto'>"
        + _each(
            "<div>{0}</div><div>{1}</div><div>{2}</div><div><button>Book</button></div>",
            "09:10|Oslo|$59",
            "11:45|Bergen|$72",
            "17:30|Bodø|$110",
        )
        + "</div>",
        (
            "row 09:10 | Oslo | $59 | [1] Book",
            "row 11:45 | Bergen | $72 | [2] Book",
            "row 17:30 | Bodø | $110 | [3] Book",
        ),
    ),
    RowPage(
        "boxes as a table",
        "<style>.row { display: table-row } .row > * { display: table-cell }</style>"
        + _each(
            "<div class=row><div>{0}</div><div>{1}</div><div><a href=#x>Details</a></div></div>",
            "Router|online",
            "Printer|offline",
            "Camera|online",
        ),
        (
            "row Router | online | [1] Details",
            "row Printer | offline | [2] Details",
            "row Camera | online | [3] Details",
        ),
    ),
    RowPage(
        "tables in items of a list",
        "<ol>"
        + _each(
            "<li><b>{0}</b><table><tr><th>Part<th>Left<th><tr><td>Bolt<td>{1}<td><button>Order"
            "</button><tr><td>Nut<td>{2}<td><button>Order</button></table>",
            "Shelf A|40|12",
            "Shelf B|7|90",
        )
        + "</ol>",
        (
            "columns Part | Left",
            "row Bolt | 40 | [1] Order",
            "row Nut | 12 | [2] Order",
            "columns Part | Left",
            "row Bolt | 7 | [3] Order",
            "row Nut | 90 | [4] Order",
        ),
    ),
    RowPage(
        "calendar",
        "<table><caption>May 2026</caption><tr><th>Mo<th>Tu<th>We<th>Th<th>Fr<th>Sa<th>Su<tr>"
        + "<td>" * 4
        + "".join(
            f"<td><button>{day}</button>" + "<tr>" * (day in (3, 10, 17)) for day in range(1, 25)
        )
        + "</table>",
        (
            "columns Mo | Tu | We | Th | Fr | Sa | Su",
            "row  |  |  |  | [1] 1 | [2] 2 | [3] 3",
            "row [4] 4 | [5] 5 | [6] 6 | [7] 7 | [8] 8 | [9] 9 | [10] 10",
            "row [11] 11 | [12] 12 | [13] 13 | [14] 14 | [15] 15 | [16] 16 | [17] 17",
            "row [18] 18 | [19] 19 | [20] 20 | [21] 21 | [22] 22 | [23] 23 | [24] 24",
        ),
    ),
    RowPage(
        "rows to press",
        "<style>tbody tr { cursor: pointer }</style>"
        + _table(
            "Train|From|To",
            "{0}|{1}|{2}",
            "R10|Oslo|Lillehammer",
            "F4|Oslo|Bergen",
            "F6|Trondheim|Oslo",
            "F5|Stavanger|Kristiansand",
            "R71|Bodø|Mosjøen",
        ),
        (
            "columns Train | From | To",
            "[1] row R10 | Oslo | Lillehammer",
            "[2] row F4 | Oslo | Bergen",
            "[3] row F6 | Trondheim | Oslo",
            "[4] row F5 | Stavanger | Kristiansand",
            "[5] row R71 | Bodø | Mosjøen",
        ),
    ),
    RowPage(
        "pictures in rows",
        "<table>"
        + _each(
            f"<tr><td><img width=40 height=40 alt='Portrait of {{0}}' src='{_PIXEL}'>"
            "<td>{0} {1}<td><button>Follow</button>",
            "Ada|Byron",
            "Grace|Hopper",
            "Alan|Turing",
        )
        + "</table>",
        (
            "row image 'Portrait of Ada' | Ada Byron | [1] Follow",
            "row image 'Portrait of Grace' | Grace Hopper | [2] Follow",
            "row image 'Portrait of Alan' | Alan Turing | [3] Follow",
        ),
    ),
    RowPage(
        "actions that hovering shows",
        "<style>td span { visibility: hidden } tr:hover span { visibility: visible }</style>"
        + _table(
            "Draft|Words|",
            "{0}|{1}|<span><button>Delete</button></span>",
            "One|210",
            "Two|90",
            "Six|7",
        ),
        (
            "columns Draft | Words",
            "row [1] item 'One' hover shows: (Delete) | 210",
            "row [2] item 'Two' hover | 90",
            "row [3] item 'Six' hover | 7",
        ),
    ),
    RowPage(
        "comments with votes",
        _each(
            "<article><a href=#x>{0}</a><p>{1}</p><button>Up</button> <button>Down</button>"
            "</article>",
            "ann|It floats.",
            "bob|It sinks after a while.",
            "cyd|Mine is red.",
        ),
        (
            "row [1] ann | It floats. | [2] Up | [3] Down",
            "row [4] bob | It sinks after a while. | [5] Up | [6] Down",
            "row [7] cyd | Mine is red. | [8] Up | [9] Down",
        ),
    ),
)
