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

_PAGES_LEFT_OUT: dict[Reason, str] = {
    "drawing": """
        bisect-angle circle-center draw-circle draw-line find-midpoint hot-cold right-angle
    """,
    "timing": """
        button-delay chase-circle click-pie hover-shape moving-items simon-says stock-market
    """,
    "visual": """
        click-color click-menu-2 click-shades click-shape count-shape count-sides drag-shapes
        drag-shapes-2 identify-shape number-checkboxes tic-tac-toe use-colorwheel use-colorwheel-2
        visual-addition
    """,
    "unmarked": """
        click-pie-nodelay daily-calendar drag-circle drag-cube drag-items-grid drag-single-shape
        email-inbox email-inbox-forward email-inbox-forward-nl email-inbox-forward-nl-turk
        email-inbox-nl-turk email-inbox-noscroll email-inbox-reply email-inbox-star-reply
        form-sequence-3 navigate-tree
    """,
    "unreadable": """
        click-widget
    """,
    "format": """
        flight.AA flight.Alaska flight.Alaska-auto flight.Alaska-auto-medium
    """,
}
LEFT_OUT: dict[str, Reason] = {
    page: reason for reason, pages in _PAGES_LEFT_OUT.items() for page in pages.split()
}
"""The other pages of the package, each with the reason."""
