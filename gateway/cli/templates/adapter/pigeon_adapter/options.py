"""The options of a runtime in gateway.yaml; no I/O."""

from datetime import timedelta
from typing import Annotated

from gateway.adapter.duration import Duration
from gateway.adapter.options import ApiKey, NativeId, base_url
from gateway.adapter.port import RuntimeOptions
from pydantic import AfterValidator, Field


class PigeonOptions(RuntimeOptions):
    """A runtime that speaks the Pigeon protocol."""

    url: Annotated[str, AfterValidator(base_url("http", "https", example="https://agents.test", key="`api_key`"))] = (
        Field(description="Base URL of the runtime.")
    )
    api_key: ApiKey = Field(description="Key of the runtime, sent as a bearer token.")
    session_id: NativeId = Field(description="The session to connect to.")
    send_timeout: Duration = Field(default=timedelta(seconds=10), description="Time limit of one POST.")
    idle_timeout: Duration = Field(default=timedelta(seconds=60), description="Silence that ends a stream.")

    @property
    def native_id(self) -> str:
        """The session to connect to."""
        return self.session_id
