"""A `user.*` type that Herm does not document may carry a secret: the names of its members give it away."""

from adapters.herm.codec import HermCodec
from gateway.envelope import Opaque
from gateway.ports.adapter import Frame


def test_members_that_are_secret_by_name_are_blacked_out_in_an_unknown_user_event() -> None:
    said = {
        "type": "user.vault_result",
        "request_id": "r1",
        "secret_value": "canary-1",
        "deep": [{"apiKey": "canary-2"}],
    }
    frame = Frame("stream", {"id": "evt_1", "type": "user.vault_result", "payload": said})
    (draft,) = HermCodec().decode(frame)
    assert isinstance(draft.event, Opaque)
    assert "canary" not in repr(draft)
    assert draft.event.payload["payload"]["request_id"] == "r1"
