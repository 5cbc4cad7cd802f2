"""A runtime's REST interface is trusted where the system trusts its certificate, as sockets and executors are."""

import asyncio
import os
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

CERTIFICATE = Path(__file__).parents[1] / "executors" / "localhost.pem"
ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"is":"up"}'
ASK = """
import asyncio, sys
from datetime import timedelta
from gateway.errors import LinkLost
from gateway.links.masking import Mask
from gateway.links.rest import RestClient

async def ask():
    async with RestClient(sys.argv[1], headers={}, mask=Mask(())) as client:
        return (await client.get("/state", {}, within=timedelta(seconds=10))).body

try:
    print(asyncio.run(ask()))
except LinkLost as exc:
    print("lost:", exc)
"""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(ANSWER)
    await writer.drain()


@pytest.mark.parametrize(
    ("trusted", "said"), [({"SSL_CERT_FILE": str(CERTIFICATE)}, "{'is': 'up'}"), ({}, "CERTIFICATE_VERIFY_FAILED")]
)
async def test_what_the_system_trusts_is_trusted_and_nothing_else(trusted: Mapping[str, str], said: str) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        # In a process of its own: trust is read once, when it begins.
        asking = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ASK, url, env={**os.environ, **trusted}, stdout=asyncio.subprocess.PIPE
        )
        told, _ = await asking.communicate()
    assert said in told.decode()
