"""Unusual rendering."""

from tests.env.kinds.kind import Done, Kind, Refused

# A sound of five seconds without a file of its own.
SOUND = """const bytes = new DataView(new ArrayBuffer(40044));
const write = (at, text) => [...text].forEach((c, i) => bytes.setUint8(at + i, c.charCodeAt(0)));
write(0, "RIFF"); write(8, "WAVEfmt "); write(36, "data");
for (const [at, value] of [[4, 40036], [16, 16], [24, 8000], [28, 8000], [40, 40000]]) {
  bytes.setUint32(at, value, true) }
for (const [at, value] of [[20, 1], [22, 1], [32, 1], [34, 8]]) bytes.setUint16(at, value, true);
new Uint8Array(bytes.buffer, 44).fill(128);
document.querySelector("audio").src = URL.createObjectURL(new Blob([bytes.buffer]));"""

# What a page in a frame shows; a press tells the page around it where it was.
IN_FRAME = """<body style="margin:0"><button style="position:absolute;left:110px;top:70px"
onclick="parent.document.title='pressed'">Pay</button>
<canvas width=100 height=50 style="display:block" aria-label=Map
onclick="parent.document.title=[event.offsetX,event.offsetY]"></canvas>"""


def framed(style: str, around: str = "") -> str:
    return f"""<div style="margin:60px;{around}"><iframe src=/frame title=Shop
style="width:200px;height:120px;{style}"></iframe></div>"""


KINDS = (
    Kind(
        name="half-checked box",
        toolkit="Material UI",
        html="""<label><input type=checkbox checked onclick="document.title=this.checked">All
files</label><script>document.querySelector("input").indeterminate = true</script>""",
        reads=("checkbox All files (mixed)",),
        action="click [{id}]",
        target=("checkbox", "All files"),
        outcome=Done("document.title", "false"),
        read_after=("checkbox All files",),
    ),
    Kind(
        name="branch of a tree, partly chosen",
        toolkit="PrimeNG Tree",
        html="""<ul role=tree><li role=treeitem aria-checked=mixed aria-expanded=false tabindex=0
onclick="this.ariaChecked = 'true'">Photos</li></ul>""",
        reads=("treeitem Photos (mixed, collapsed)",),
        action="click [{id}]",
        target=("treeitem", "Photos"),
        outcome=Done("document.querySelector('li').ariaChecked", "true"),
        read_after=("treeitem Photos (checked, collapsed)",),
    ),
    Kind(
        name="chart with a name, a legend and a link",
        toolkit="Highcharts",
        html="""<svg width=320 height=160 role=img aria-label="Interactive chart">
<text x=10 y=20>Total 1,234</text><g role=button tabindex=0 aria-label="Hide North"
onclick="document.title='hidden'"><rect x=10 y=40 width=80 height=40 /></g>
<a href="#south"><text x=150 y=90>South</text></a></svg>""",
        reads=("image Interactive chart", "Total 1,234", "button Hide North", "link South"),
        action="click [{id}]",
        target=("button", "Hide North"),
        outcome=Done("document.title", "hidden"),
    ),
    Kind(
        name="custom element with a closed shadow root",
        toolkit="Lightning Web Components",
        html="""<x-buy>now</x-buy><script>customElements.define("x-buy", class extends HTMLElement {
constructor() { super(); this.attachShadow({mode: "closed"}).innerHTML = `<p>Price 12 EUR</p>
<button onclick="document.title = 'bought'">Buy <slot></slot></button>` } })</script>""",
        reads=("Price 12 EUR", "button Buy now"),
        action="click [{id}]",
        target=("button", "Buy now"),
        outcome=Done("document.title", "bought"),
    ),
    Kind(
        name="price and status in a style sheet",
        toolkit="CSS",
        html="""<style>.price::before {content: "EUR "}
.order[data-status]::after {content: " (" attr(data-status) ")"}</style>
<p class=price>12</p><p class=order data-status=paid>Order 7</p>""",
        reads=("EUR 12", "Order 7 (paid)"),
    ),
    Kind(
        name="heading numbers from counters",
        toolkit="CSS",
        html="""<style>body {counter-reset: a} h2 {counter-reset: b}
h2::before {counter-increment: a; content: counter(a) ". "}
h3::before {counter-increment: b; content: counter(a) "." counter(b, upper-roman) " "}</style>
<h2>Terms</h2><h3>Scope</h3><h3>Price</h3><h2>Law</h2>""",
        reads=(*("heading 1. Terms", "heading 1.I Scope", "heading 1.II Price", "heading 2. Law"),),
    ),
    Kind(
        name="button with a sign from a style sheet",
        toolkit="Bootstrap",
        html="""<style>.close::before {content: "\\D7"} .home::before {content: "\\e88a"}</style>
<button class=close onclick="document.title='closed'"></button>
<a href=#home class=home>Home</a>""",
        reads=("button ×", "link Home"),
        action="click [{id}]",
        target=("button", "×"),
        outcome=Done("document.title", "closed"),
    ),
    Kind(
        name="progress bars",
        toolkit="Bootstrap, Material UI",
        html="""<label>Upload <progress value=3 max=4></progress></label>
<div role=progressbar aria-label=Import aria-valuenow=45><div>45%</div></div>
<div role=progressbar aria-label=Search style="height: 4px"></div>""",
        reads=(
            "progressbar Upload = 3 of 4 (75%)",
            *("progressbar Import = 45%", "progressbar Search = in progress"),
        ),
    ),
    Kind(
        name="meter",
        toolkit="HTML",
        html="<label for=m>Disk</label> <meter id=m value=0.6></meter>",
        reads=("meter Disk = 60%",),
    ),
    Kind(
        name="audio in the browser's player",
        toolkit="HTML",
        html=f"<audio controls muted title=Song></audio><script>{SOUND}</script>",
        reads=("audio Song = paused at 0:00 of 0:05, muted",),
        action="click [{id}]",
        target=("audio", "Song"),
        outcome=Done("document.querySelector('audio').paused", False),
    ),
    Kind(
        name="inert part of a page",
        toolkit="HTML",
        html="<div inert><p>Step 2</p><button>Pay</button></div><button>Next</button>",
        reads=("Step 2", "button Pay (disabled)", "button Next"),
        action="click [{id}]",
        target=("button", "Pay"),
        outcome=Refused("is in a part of the page that is inert now"),
    ),
    Kind(
        name="frame scaled down",
        toolkit="CSS",
        html=framed("", "transform: scale(0.5)"),
        pages={"/frame": IN_FRAME},
        reads=("button Pay",),
        action="click [{id}]",
        target=("button", "Pay"),
        outcome=Done("document.title", "pressed"),
    ),
    Kind(
        name="point of a frame that is rotated and zoomed",
        toolkit="CSS",
        html=framed("zoom: 1.5; rotate: 30deg"),
        pages={"/frame": IN_FRAME},
        reads=("canvas Map",),
        action="click [{id}] [25%,80%]",
        target=("canvas", "Map"),
        outcome=Done("document.title", "25,40"),
    ),
)
