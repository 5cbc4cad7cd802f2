"""What passes a simulated peer is kept as it was written."""

import httpx
import httpx2
import websockets

from gateway.testing.http_wire import NotingTransport
from gateway.testing.runtimes.huma.server import HumaServer
from gateway.testing.serving import Served
from gateway.testing.wire import Wire
from tests.simulators.echo import echo

ODD = '{"b" :1,  "a":"\\u00e9", "b2": 1.0}'


async def test_requests_and_responses_are_kept_to_the_letter_and_belong_together() -> None:
    wire = Wire()
    async with Served(echo, wire=wire) as served, httpx.AsyncClient(base_url=served.url) as http:
        for text in (ODD, "second"):
            answer = await http.post(
                "/tools", content=text, headers={"webhook-id": text[:2], "authorization": "secret"}
            )
            assert answer.text == f"you said {text}"
    asked = wire.find("second", by_gateway=True)
    assert asked is not None
    told = wire.answer_to(asked)
    assert told is not None
    assert (asked.head, asked.text, asked.headers["webhook-id"]) == ("POST /tools", "second", "se")
    assert (told.head, told.text, told.by_gateway) == ("201", "you said second", False)
    assert [each.text for each in wire.passed] == [ODD, f"you said {ODD}", "second", "you said second"]
    assert not any("secret" in str(each) for each in wire.passed)


async def test_a_client_keeps_what_it_sends_and_reads() -> None:
    wire = Wire()
    async with Served(echo) as served, httpx2.AsyncClient(transport=NotingTransport(wire)) as http:
        answer = await http.post(f"{served.url}/mcp", content=ODD, headers={"authorization": "secret"})
    assert answer.text == f"you said {ODD}"
    (asked,) = [each for each in wire.passed if not each.by_gateway]
    told = wire.answer_to(asked)
    assert told is not None
    assert (asked.head, asked.text, told.head, told.text) == ("POST /mcp", ODD, "201", answer.text)
    assert "secret" not in str(wire.passed)


async def test_packets_of_both_sides_are_kept_to_the_letter() -> None:
    wire = Wire()
    async with HumaServer("0.2", api_key="ak_test", wire=wire) as server:
        agent = server.agent("finn")
        address = f"{server.url.replace('http', 'ws')}/socket.io/?EIO=4&transport=websocket&agentId=finn&apiKey=ak_test"
        async with websockets.connect(address) as client:
            await client.recv()
            await client.send("40")
            await agent.wait_connected()
            call = await agent.call("ask_for_cards", {"rank": "7"})
            packet = str(await client.recv())
            while call.call_id not in packet:
                packet = str(await client.recv())
            names = f'"toolCallId" :"{call.call_id}","toolName":"ask_for_cards","triggering":true'
            result = f'42["message" , {{"type":"tool-result",{names},  "outcome":"success","result":"Go \\u0066ish!"}}]'
            await client.send(result)
            await call.result()
    asked, told = wire.find(call.call_id, by_gateway=False), wire.find(call.call_id, by_gateway=True)
    assert asked is not None
    assert told is not None
    assert (asked.text, told.text) == (packet, result)
    assert asked.exchange == told.exchange
