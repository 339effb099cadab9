"""What the answers of /v1 and /v2 have in common, as OpenAPI shows it."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]


class Answer(BaseModel):
    """A field that is answered and not described here is a mistake."""

    model_config = ConfigDict(extra="forbid")
