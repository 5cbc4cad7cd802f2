// Answers the tool calls of agents. Start it with: node --env-file=.env backend.mjs
import express from "express";
import { Webhook } from "standardwebhooks";

const seal = new Webhook(process.env.CARDS_SECRET);
const app = express();

// One function per tool. Its return value is the result; an exception is reported to the agent as a failure.
const tools = {
  ask_for_cards: ({ rank }) => `Go fish! Nobody has a ${rank}.`,
};

// The signature covers the raw bytes, so verify it before parsing the body.
app.post("/tools", express.raw({ type: "application/json", limit: "2mb" }), async (request, response) => {
  let asked;
  try {
    asked = seal.verify(request.body, request.headers);
  } catch (error) {
    return response.status(401).json({ detail: String(error.message) });
  }
  if (asked.type !== "tool.requested") return response.status(204).end(); // a cancellation: no answer is expected
  const { tool, arguments: given } = asked.data;
  try {
    if (!Object.hasOwn(tools, tool)) throw new Error(`there is no tool ${tool}`);
    response.json({ outcome: "success", result: await tools[tool](given) });
  } catch (error) {
    response.json({ outcome: "failure", error: String(error.message) });
  }
});

const port = Number(process.env.PORT ?? 9000);
app.listen(port, "127.0.0.1", () => console.log(`backend at http://127.0.0.1:${port}/tools`));
