"""Parameters that constrain the text of a reply, under the names that servers have for them."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from llguidance.gbnf_to_lark import any_to_lark
from pydantic import Field, JsonValue

from agentkv.dialog.calls import Call
from agentkv.dialog.schema.check import CheckTooLong
from agentkv.dialog.schema.prepared import PreparedSchema, prepare, rule_of
from agentkv.dialog.schema.references import SchemaError
from agentkv.dialog.schema.strings import PatternError, split_pattern
from agentkv.serve.body import Body, RequestError

MAX_GRAMMAR = 32_000
"""Maximum number of characters in a grammar (our choice: it is converted within a second)."""

_Text = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR)]
_Choices = Annotated[list[str], Field(min_length=1, max_length=4096)]
_Schema = dict[str, JsonValue] | Annotated[str, Field(max_length=1_000_000)]


class _StructuredOutputs(Body, extra="forbid"):
    """vLLM's constraints in one parameter."""

    json_: _Schema | None = Field(default=None, alias="json")
    regex: _Text | None = None
    choice: _Choices | None = None
    grammar: _Text | None = None
    json_object: bool = False
    disable_any_whitespace: bool = False
    """Changes nothing, and neither does the next one: replies have no free white space."""
    disable_fallback: bool = False


class Constraints(Body):
    """The parameters that constrain a reply; a request may have one of them."""

    structured_outputs: _StructuredOutputs = _StructuredOutputs()
    guided_regex: _Text | None = None
    guided_choice: _Choices | None = None
    guided_grammar: _Text | None = None
    grammar: _Text | None = None
    """llama.cpp's GBNF, or Lark."""
    regex: _Text | None = None
    """SGLang's, as `ebnf`."""
    ebnf: _Text | None = None

    def constraint(self) -> "Constraint | None":
        """Return the constraint of the request; None if it has none.

        Raises:
            RequestError: it has several, or one that cannot be enforced.
        """
        ours = self.structured_outputs
        schemas = {
            "structured_outputs.json": ours.json_,
            "structured_outputs.json_object": {"type": "object"} if ours.json_object else None,
        }
        kinds: list[tuple[Callable[[Any, str], Constraint], dict[str, Any]]] = [
            (schema_constraint, schemas),
            (_regex, {"guided_regex": self.guided_regex, "regex": self.regex}),
            (_regex, {"structured_outputs.regex": ours.regex}),
            (_choice, {"guided_choice": self.guided_choice}),
            (_choice, {"structured_outputs.choice": ours.choice}),
            (_grammar, {"guided_grammar": self.guided_grammar, "grammar": self.grammar}),
            (_grammar, {"ebnf": self.ebnf, "structured_outputs.grammar": ours.grammar}),
        ]
        made = [
            (make, value, name)
            for make, named in kinds
            for name, value in named.items()
            if value is not None
        ]
        if len(made) > 1:
            raise exclusive(made[0][2], made[1][2])
        return made[0][0](made[0][1], made[0][2]) if made else None


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the text of a reply may be."""

    name: str
    """The parameter that asks for it."""
    rule: str
    """Right side of a Lark rule (llguidance's dialect)."""
    schema: PreparedSchema | None = None


@dataclass(frozen=True, slots=True)
class LateCheck:
    """The schemas that only a complete reply can be checked against."""

    text: Constraint | None = None
    arguments: Mapping[str, PreparedSchema] = field(default_factory=dict)
    """Schemas of the arguments by the functions' names."""

    def violation(self, text: str, calls: list[Call]) -> str | None:
        """Return how a complete reply violates its schema; None if it follows it."""
        if not calls:
            schema = None if self.text is None else self.text.schema
            if schema is not None and (found := _violation(schema, text)):
                return f"the reply does not follow its schema: {found}"
            return None
        for call in calls:
            known = self.arguments.get(call.name)
            if known is not None and (found := _violation(known, call.arguments)):
                return f"the arguments of {call.name} do not follow their schema: {found}"
        return None


def _violation(schema: PreparedSchema, text: str) -> str | None:
    try:
        return schema.violation(json.loads(text))
    except CheckTooLong as error:
        return str(error)
    except (ValueError, RecursionError):
        return None  # a stop text has cut it, which the client can see


def exclusive(one: str, other: str) -> RequestError:
    """Return the error for two parameters of which a request may have one."""
    return RequestError(f"{one} and {other} exclude one another; send one of them", param=other)


def prepared(schema: Any, param: str, *, is_object: bool = False) -> PreparedSchema:
    """Return a schema prepared for replies.

    Raises:
        RequestError: it cannot be enforced.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            schema = None
        if not isinstance(schema, dict):
            raise RequestError(f"{param} is not a JSON schema", param=param)
    try:
        return prepare(schema, is_object=is_object)
    except SchemaError as error:
        raise RequestError(f"{param} at {error}", param=param, code="unsupported_schema") from None


def schema_constraint(schema: Any, param: str) -> Constraint:
    """Return the constraint to values of a JSON schema; raises as `prepared` does."""
    made = prepared(schema, param)
    return Constraint(param, rule_of(made.grammar), made)


def _regex(pattern: str, param: str) -> Constraint:
    try:
        wanted, unwanted = split_pattern(pattern)
        if unwanted or len(wanted) > 1:
            raise PatternError("it has look-ahead")
    except PatternError as error:
        raise RequestError(f"{param} cannot be enforced: {error}", param=param) from None
    escaped = re.sub(r"\\.|/|\n", lambda found: _ESCAPES.get(found[0], found[0]), pattern)
    return Constraint(param, f"/{escaped}/")


_ESCAPES = {"/": r"\/", "\n": r"\n"}


def _choice(choices: list[str], param: str) -> Constraint:
    listed = [json.dumps(each, ensure_ascii=False) for each in dict.fromkeys(choices)]
    return Constraint(param, " | ".join(listed))


def _grammar(grammar: str, param: str) -> Constraint:
    try:
        lark = any_to_lark(grammar)
    except Exception as error:  # a parser of llguidance's, which raises what it likes
        raise RequestError(
            f"{param} is neither a GBNF nor a Lark grammar: {str(error)[:200]}", param=param
        ) from None
    return Constraint(param, f"%lark {{\n{lark}\n}}")
