"""Bodies of requests: how they are validated, and the error of a wrong one."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class RequestError(ValueError):
    """The server cannot answer a request as it is.

    Args:
        param: the parameter that is wrong.
        code: OpenAI's code for the error.
        status: HTTP status.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


class Body(BaseModel):
    """A JSON object of a request. A null member counts as left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if isinstance(given, dict):
            return {name: value for name, value in given.items() if value is not None}
        return given
