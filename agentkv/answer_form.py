"""The answer of an episode as an instance of a pydantic model that the caller gives."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from agentkv.trace import A, Step

if TYPE_CHECKING:
    from agentkv.dialog.schema.prepared import PreparedSchema

_SHOWN = 300  # characters of an answer that an error quotes


class AnswerFormError(ValueError):
    """Answers cannot have this class, or the model cannot write them."""


class AnswerInvalid(ValueError):
    """The model's answer does not validate; `text` is what it wrote."""

    steps: tuple[Step, ...] = ()
    """The steps of the episode, with secrets masked."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


@dataclass(frozen=True, slots=True)
class AnswerForm(Generic[A]):
    """A pydantic model, prepared for answers."""

    model: type[A]
    schema: "PreparedSchema"

    @classmethod
    def of(cls, model: type[A]) -> Self:
        """Prepare a pydantic model.

        Raises:
            AnswerFormError: it is not one, or its JSON schema cannot be enforced.
        """
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise AnswerFormError(f"answer is a subclass of pydantic.BaseModel; found {model!r}")
        from agentkv.dialog.schema.prepared import prepare  # loads llguidance, which few need
        from agentkv.dialog.schema.references import SchemaError

        try:
            return cls(model, prepare(model.model_json_schema()))
        except (SchemaError, PydanticInvalidForJsonSchema) as error:
            reason = str(error).splitlines()[0]
            raise AnswerFormError(
                f"answer={model.__name__}: no answer can have it: {reason}"
            ) from None

    def read(self, text: str) -> A:
        """Return the instance that `text` spells.

        Raises:
            AnswerInvalid: the text does not validate.
        """
        assert issubclass(self.model, BaseModel)
        try:
            return self.model.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            hint = (
                "it was cut off: allow more with max_new_tokens, or bound its texts with max_length"
            )
            if first["type"] != "json_invalid":
                hint = "ask again with another seed, or loosen the model"
            raise AnswerInvalid(
                f"the answer is no {self.model.__name__}: {where + ': ' if where else ''}"
                f"{first['msg']}; {hint}; found {shown!r}",
                text,
            ) from None
