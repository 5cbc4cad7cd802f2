// The TypeScript SDK's client: does what `test_mcp_clients.py` expects, and says in lines of JSON what it was told.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const say = (...told) => console.log(JSON.stringify(told));
const texts = (result) => result.content.map((block) => block.text);
const headers = { authorization: `Bearer ${process.env.TOKEN}` };
const transport = new StreamableHTTPClientTransport(new URL(process.env.URL), { requestInit: { headers } });
const client = new Client({ name: "foreign", version: "1" });
await client.connect(transport);
const call = (name, args, options) => client.callTool({ name, arguments: args ?? {} }, undefined, options);

say("listed", (await client.listTools()).tools.map((tool) => tool.name));
say("quick", texts(await call("quick")));
const broken = await call("broken");
say("broken", broken.isError, texts(broken));

const heard = [];
const slow = await call("slow", {}, { onprogress: ({ message }) => message && heard.push(message) });
say("slow", heard, texts(slow));

const [unfinished] = texts(await call("later"));
say("later", unfinished);
const named = JSON.parse(unfinished.match(/\{.*\}/)[0]);
say("waited", texts(await call("get_result", named)));

const controller = new AbortController();
const onprogress = ({ message }) => message && controller.abort("never mind");
await call("endless", {}, { onprogress, signal: controller.signal }).then(
  (result) => say("endless", texts(result)),
  () => say("canceled"),
);
// What says so is on its way until the test has seen it arrive.
for await (const _ of process.stdin);
await client.close();
