"""The pages of MiniWoB++: those that the suite scores, and why it leaves out the others."""

from typing import Literal

Reason = Literal["drag", "drawing", "visual", "unmarked", "unreadable", "scrolling", "timing",
                 "clock", "format"]  # fmt: skip
"""Why a page is left out.

`drag` and `drawing` need a mouse button held down or a free position, which our actions lack;
`visual` needs colours, shapes or pictures without a text; on an `unmarked` page the agent gets no
number for something that it must click, because only a script's listener makes it clickable; an
`unreadable` page names something that the agent's view lacks; `scrolling` needs a disabled field
scrolled; `timing` rewards the right moment; `clock` shows the day and `format` instructs in JSON.
"""

SCORED = tuple(
    """
    book-flight book-flight-nodelay buy-ticket choose-date choose-date-easy choose-date-medium
    choose-date-nodelay choose-list click-button click-button-sequence click-checkboxes
    click-checkboxes-large click-checkboxes-soft click-checkboxes-transfer click-collapsible
    click-collapsible-2 click-collapsible-2-nodelay click-collapsible-nodelay click-dialog
    click-dialog-2 click-link click-menu click-option click-scroll-list click-tab
    click-tab-2 click-tab-2-easy click-tab-2-hard click-tab-2-medium click-test click-test-2
    click-test-transfer copy-paste copy-paste-2 email-inbox-delete email-inbox-important enter-date
    enter-password enter-text enter-text-2 enter-text-dynamic enter-time find-greatest find-word
    focus-text focus-text-2 form-sequence form-sequence-2 generate-number guess-number login-user
    login-user-popup multi-layouts multi-orderings odd-or-even phone-book read-table read-table-2
    scroll-text scroll-text-2 search-engine simple-algebra simple-arithmetic text-transform
    unicode-test use-autocomplete use-autocomplete-nodelay use-slider use-slider-2 use-spinner
    """.split()
)
"""Names of the pages in the suite, in the order of its tasks."""

LEFT_OUT: dict[str, Reason] = {
    "ascending-numbers": "unmarked",
    "bisect-angle": "drawing",
    "button-delay": "timing",
    "chase-circle": "timing",
    "circle-center": "drawing",
    "click-color": "visual",
    "click-menu-2": "visual",
    "click-pie": "timing",
    "click-pie-nodelay": "unmarked",
    "click-shades": "visual",
    "click-shape": "visual",
    "click-widget": "unreadable",
    "count-shape": "visual",
    "count-sides": "visual",
    "daily-calendar": "drag",
    "drag-box": "drag",
    "drag-circle": "drag",
    "drag-cube": "drag",
    "drag-items": "drag",
    "drag-items-grid": "drag",
    "drag-shapes": "drag",
    "drag-shapes-2": "drag",
    "drag-single-shape": "drag",
    "drag-sort-numbers": "drag",
    "draw-circle": "drawing",
    "draw-line": "drawing",
    "email-inbox": "unmarked",
    "email-inbox-forward": "unmarked",
    "email-inbox-forward-nl": "unmarked",
    "email-inbox-forward-nl-turk": "unmarked",
    "email-inbox-nl-turk": "unmarked",
    "email-inbox-noscroll": "unmarked",
    "email-inbox-reply": "unmarked",
    "email-inbox-star-reply": "unmarked",
    "find-midpoint": "drawing",
    "flight.AA": "format",
    "flight.Alaska": "format",
    "flight.Alaska-auto": "format",
    "flight.Alaska-auto-medium": "format",
    "form-sequence-3": "unmarked",
    "grid-coordinate": "visual",
    "highlight-text": "drag",
    "highlight-text-2": "drag",
    "hot-cold": "drawing",
    "hover-shape": "timing",
    "identify-shape": "visual",
    "moving-items": "timing",
    "navigate-tree": "unmarked",
    "number-checkboxes": "visual",
    "order-food": "unmarked",
    "resize-textarea": "drag",
    "right-angle": "drawing",
    "sign-agreement": "scrolling",
    "simon-says": "timing",
    "social-media": "unmarked",
    "social-media-all": "unmarked",
    "social-media-some": "unmarked",
    "stock-market": "timing",
    "terminal": "clock",
    "text-editor": "visual",
    "tic-tac-toe": "unmarked",
    "use-colorwheel": "visual",
    "use-colorwheel-2": "visual",
    "visual-addition": "visual",
}
"""The other pages of the package, each with the reason."""
