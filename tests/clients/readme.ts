// The requests of gateway/http/README.md, through the types that openapi-typescript makes.
import type { components, operations, paths, webhooks } from "./api";

type Schemas = components["schemas"];
type Posted = operations["postEvents"]["requestBody"]["content"]["application/json"];

const message: Posted = { kind: "message.posted", author: { name: "Alice" }, content: "Your turn, Finn!" };
const picture: Posted = {
  events: [
    { kind: "message.posted", content: [{ type: "text", text: "Look:" }, { type: "image", url: "data:image/png;base64,AA==" }] },
    { kind: "context.updated", name: "table", context: { turn: "Victoria" } },
  ],
};
const opened: operations["openSession"]["requestBody"]["content"]["application/json"] = { runtime: "finn" };
const outcome: Schemas["OutcomeForm"] = { outcome: "success", result: { cards: ["7H"] }, updates: [{ name: "table", context: {} }] };
const progress: operations["progressCall"]["requestBody"]["content"]["application/json"] = { percent: 40 };
const canceled: NonNullable<operations["cancelCall"]["requestBody"]>["content"]["application/json"] = {};
const many: NonNullable<operations["redriveDeadLetters"]["requestBody"]>["content"]["application/json"] = { executor: "cards" };
const answer: Schemas["AnswerInteraction"] = { decision: "allow", scope: "once" };

// @ts-expect-error an event has a kind
const kindless: Posted = { content: "Your turn, Finn!" };
// @ts-expect-error requests are closed
const strange: Schemas["OpenSession"] = { runtime: "finn", nativeId: "x" };

export async function post(api: string, key: string, session: string): Promise<number[]> {
  const path: keyof paths = "/v1/sessions/{session_id}/events";
  const posted = await fetch(api + path.replace("{session_id}", session), {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json", "Idempotency-Key": crypto.randomUUID() },
    body: JSON.stringify(message),
  });
  if (!posted.ok) {
    const problem = (await posted.json()) as Schemas["Problem"];
    throw new Error(problem.detail);
  }
  const written = (await posted.json()) as operations["postEvents"]["responses"]["202"]["content"]["application/json"];
  return written.data.map((envelope) => envelope.sequence);
}

export function said(envelope: Schemas["Envelope"]): string {
  return envelope.event.kind === "message.posted" ? envelope.event.author.role : envelope.event.kind;
}

type Asked = webhooks["tool.requested"]["post"]["requestBody"]["content"]["application/json"];
export function settle(asked: Asked): Schemas["OutcomeForm"] {
  return asked.data.tool === "ask_for_cards" ? outcome : { outcome: "failure", error: `no tool ${asked.type}` };
}

export const all = [message, picture, opened, progress, canceled, many, answer, kindless, strange];
