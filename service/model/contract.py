"""What the parts of bundle.json are made of: a frozen base class, and the types of names, texts and shares."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
PolicyName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Text = Annotated[str, Field(min_length=1, max_length=2000)]
Rate = Annotated[float, Field(ge=0, le=1)]


def _margin(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == "full" or (number and 1 <= value < math.inf):
        return value
    raise ValueError('expected a number from 1, or "full"')


DecodeMargin = Annotated[float | Literal["full"], BeforeValidator(_margin)]  # see `service.model.manifest.Input`
USUAL_MARGIN = 2.0


class Contract(BaseModel):
    """Frozen; an unknown field is an error, because a field that is not read is a promise that is not kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
