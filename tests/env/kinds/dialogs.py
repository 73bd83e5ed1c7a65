"""Dialogs of the browser."""

from tests.env.kinds.kind import Done, Kind, Refused

OPEN = "notice: a dialog of the page is open; all else waits until it is answered"


def _asked(asks: str) -> str:
    """Return a page that asks while it loads; its title tells the answer."""
    return f"<title>Waits</title><h1>Articles</h1><script>document.title = {asks}</script>"


_RAILS = """<title>Waits</title>
<a href=/deleted data-method=delete data-confirm="Delete the article?">Delete</a>
<script>document.addEventListener('click', event => {
  const asks = event.target.dataset.confirm;
  if (asks && !confirm(asks)) { event.preventDefault(); document.title = 'kept'; }
});
document.querySelector('a').click();</script>"""

KINDS = (
    Kind(
        name="a confirm is accepted",
        toolkit="Rails UJS",
        html=_asked("confirm('Delete the article?') ? 'deleted' : 'kept'"),
        reads=(OPEN, "dialog Delete the article?", "button OK", "button Cancel"),
        action="click [{id}]",
        target=("button", "OK"),
        outcome=Done("document.title", "deleted"),
    ),
    Kind(
        name="a confirm is refused",
        toolkit="Rails UJS",
        html=_RAILS,
        reads=("dialog Delete the article?", "button OK", "button Cancel"),
        action="click [{id}]",
        target=("button", "Cancel"),
        outcome=Done("document.title", "kept"),
        read_after=("link Delete",),
    ),
    Kind(
        name="a multi-line confirm",
        toolkit="phpMyAdmin",
        html=_asked("confirm('You are about to DROP a table!\\n\\nDo it?\\n[1] is no number')"),
        reads=("dialog", "You are about to DROP a table!", "Do it?", "⟦1⟧ is no number"),
        action="press [Escape]",
        outcome=Done("document.title", "false"),
    ),
    Kind(
        name="a prompt is answered",
        toolkit="Quill",
        html=_asked("prompt('Enter link:', 'https://')"),
        reads=(OPEN, "dialog Enter link:", "textbox Answer = https://", "button OK"),
        action="type [{id}] [https://bees.example] [1]",
        target=("textbox", "Answer"),
        outcome=Done("document.title", "https://bees.example"),
    ),
    Kind(
        name="a prompt keeps its default",
        toolkit="TinyMCE",
        html=_asked("prompt('Columns', '2')"),
        reads=("dialog Columns", "textbox Answer = 2"),
        action="press [Enter]",
        outcome=Done("document.title", "2"),
    ),
    Kind(
        name="a prompt is canceled",
        toolkit="elFinder",
        html=_asked("String(prompt('New folder'))"),
        reads=("dialog New folder", "textbox Answer"),
        action="press [Escape]",
        outcome=Done("document.title", "null"),
    ),
    Kind(
        name="another action while a dialog is open",
        toolkit="HTML",
        html=_asked("confirm('Delete all?')"),
        reads=("dialog Delete all?",),
        action="scroll [down]",
        outcome=Refused("a dialog is open, and all else waits until it is answered: click ["),
        read_after=(OPEN, "dialog Delete all?"),
    ),
    Kind(
        name="one dialog after another",
        toolkit="WordPress",
        html=_asked("confirm('Delete 40 files?') && prompt('Type DELETE')"),
        reads=("dialog Delete 40 files?",),
        action="click [{id}]",
        target=("button", "OK"),
        read_after=(OPEN, "dialog Type DELETE", "textbox Answer", "button OK", "button Cancel"),
    ),
    Kind(
        name="a dialog that a network response opens",
        toolkit="jQuery",
        html="<button onclick=\"fetch('/used').then(() => confirm('In use. Delete?'))\">"
        "Delete</button><p>Blue kayak",
        pages={"/used": ""},
        reads=("button Delete", "Blue kayak"),
        action="click [{id}]",
        target=("button", "Delete"),
        read_after=(OPEN, "dialog In use. Delete?", "button OK", "button Delete (covered)"),
    ),
    Kind(
        name="a form that warns before the page is left",
        toolkit="Django admin",
        html="<script>onbeforeunload = event => event.preventDefault()</script>"
        "<form action=/saved><input aria-label=Title name=title></form>",
        pages={"/saved": "Saved"},
        reads=("textbox Title",),
        action="type [{id}] [Bees] [1]",
        target=("textbox", "Title"),
        read_after=(
            *("dialog Leave this page? What was entered on it may be lost.",),
            *("button Leave", "button Stay"),
        ),
    ),
    Kind(
        name="an alert",
        toolkit="HTML",
        html="<script>alert('Saved')</script><p>Blue kayak",
        reads=("notice: alert accepted: Saved", "Blue kayak"),
        note="answered at once, because there is no choice",
    ),
)
