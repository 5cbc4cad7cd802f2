"""Runs the conformance suite for codecs with the vectors."""

from pathlib import Path

from gateway.testing.conformance.codec import CodecSuite

from pigeon_adapter import ADAPTER


class TestPigeonCodec(CodecSuite):
    adapter = ADAPTER
    channels = ("events", "messages")
    vectors = Path(__file__).parent / "vectors"
