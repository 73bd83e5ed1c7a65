"""The pages of MiniWoB++: those that the suite scores, others with a script, and the rest."""

from typing import Literal

Reason = Literal["drawing", "visual", "unmarked", "unreadable", "timing", "format"]
"""Why no script solves a page.

`drawing` needs the place of something that is only drawn; `visual` needs colours, shapes or
pictures without a text; on an `unmarked` page the agent gets no number for something that it must
press or drag; an `unreadable` page names something that the agent's view lacks; `timing` rewards
the right moment, and `format` instructs in JSON.
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

EXTRA = tuple(
    """
    ascending-numbers drag-box drag-items drag-sort-numbers grid-coordinate highlight-text
    highlight-text-2 order-food resize-textarea sign-agreement social-media social-media-all
    social-media-some terminal text-editor
    """.split()
)
"""Names of pages that have a script, but no place in the suite, so that the numbers of its tasks
stay. They need more than VisualWebArena's actions, or elements that had no number then."""

LONG = {"sign-agreement": 60}
"""Maximum number of actions on pages that need more than others: an agreement is scrolled through a
few lines at a time."""

LEFT_OUT: dict[str, Reason] = {
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
    "daily-calendar": "unmarked",
    "drag-circle": "unmarked",
    "drag-cube": "unmarked",
    "drag-items-grid": "unmarked",
    "drag-shapes": "visual",
    "drag-shapes-2": "visual",
    "drag-single-shape": "unmarked",
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
    "hot-cold": "drawing",
    "hover-shape": "timing",
    "identify-shape": "visual",
    "moving-items": "timing",
    "navigate-tree": "unmarked",
    "number-checkboxes": "visual",
    "right-angle": "drawing",
    "simon-says": "timing",
    "stock-market": "timing",
    "tic-tac-toe": "visual",
    "use-colorwheel": "visual",
    "use-colorwheel-2": "visual",
    "visual-addition": "visual",
}
"""The other pages of the package, each with the reason."""
