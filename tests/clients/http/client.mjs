// Node's undici with its defaults: an event, a callback, a stream and an MCP client's first request.
import { request } from "undici";

const { API, KEY, SESSION, CALLBACK, MCP, TOKEN, EVENT, OUTCOME, INITIALIZE } = process.env;
const say = (...told) => console.log(JSON.stringify(told));

async function post(url, body, headers = {}) {
  const answer = await request(url, { method: "POST", body, headers: { "content-type": "application/json", ...headers } });
  return [answer.statusCode, await answer.body.text()];
}

const key = { authorization: `Bearer ${KEY}` };
say("event", ...(await post(`${API}/v1/sessions/${SESSION}/events`, EVENT, key)));
say("callback", ...(await post(CALLBACK, OUTCOME)));

const stream = await request(`${API}/v1/sessions/${SESSION}/events/stream?after=0`, { headers: key });
let text = "";
for await (const piece of stream.body.setEncoding("utf8")) {
  text += piece;
  if (text.includes("tool.finished")) break;
}
say("stream", stream.statusCode, text);

const accepts = { authorization: `Bearer ${TOKEN}`, accept: "application/json, text/event-stream" };
say("mcp", ...(await post(MCP, INITIALIZE, accepts)));
