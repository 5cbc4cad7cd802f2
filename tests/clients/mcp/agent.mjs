// The TypeScript SDK's client: calls a tool for each line that it reads, and prints what came of it.
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const headers = { authorization: `Bearer ${process.env.TOKEN}` };
const url = new URL(process.env.URL);
for await (const line of createInterface({ input: process.stdin })) {
  const [name, args] = JSON.parse(line);
  const client = new Client({ name: "agent", version: "1" });
  let said;
  try {
    await client.connect(new StreamableHTTPClientTransport(url, { requestInit: { headers } }));
    const result = await client.callTool({ name, arguments: args }, undefined, { onprogress: () => {} });
    said = ["result", result.isError, result.content.map((block) => block.text), result._meta ?? null];
  } catch (error) {
    said = ["broken", error.name, String(error)];
  }
  console.log(JSON.stringify(said));
  await client.close();
}
