"""The codec, against the suite for codecs and the vectors."""

from pathlib import Path

from gateway.testing.conformance.codec import CodecSuite

from example_adapter import ADAPTER


class TestExampleCodec(CodecSuite):
    adapter = ADAPTER
    channels = ("events", "messages")
    vectors = Path(__file__).parent / "vectors"
