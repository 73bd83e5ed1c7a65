"""Fields that take a value."""

from tests.env.kinds.kind import Done, Kind

KINDS = (
    Kind(
        name="text field",
        library="HTML",
        html="<label>City <input value=Rome></label>",
        reads=("textbox City = Rome",),
        action="type [{id}] [Oslo] [0]",
        target=("textbox", "City"),
        outcome=Done("document.querySelector('input').value", "Oslo"),
        read_after=("textbox City = Oslo",),
    ),
)
