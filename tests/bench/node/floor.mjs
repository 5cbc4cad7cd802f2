// The integration that people would write by hand in Node; it keeps nothing. Ends when stdin ends.
import { io } from "socket.io-client";
import { Pool } from "undici";

const [runtime, webhook] = process.argv.slice(2);
const target = new URL(webhook);
const pool = new Pool(target.origin, { connections: 256 });
const socket = io(runtime, { transports: ["websocket"], query: { agentId: "node", apiKey: "key" } });

socket.on("event", async (call) => {
  const { body } = await pool.request({
    method: "POST",
    path: target.pathname,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      type: "tool.requested",
      data: { native_call_id: call.toolCallId, tool: call.toolName, arguments: call.arguments },
    }),
  });
  const said = await body.json();
  socket.emit("message", {
    type: "tool-result",
    triggering: true,
    toolCallId: call.toolCallId,
    toolName: call.toolName,
    outcome: said.outcome,
    result: said.result,
  });
});

process.stdin.on("end", () => process.exit(0));
process.stdin.resume();
