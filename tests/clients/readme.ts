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
const wanted: operations["callTool"]["requestBody"]["content"]["application/json"] = { tool: "ask_for_cards", arguments: { rank: "7" }, key: "order-4711" };
const within: operations["callTool"]["parameters"]["query"] = { wait: 30 };
const answer: Schemas["AnswerInteraction"] = { decision: "allow", scope: "once" };

// @ts-expect-error an event has a kind
const kindless: Posted = { content: "Your turn, Finn!" };
// @ts-expect-error requests are closed
const strange: Schemas["OpenSession"] = { runtime: "finn", nativeId: "x" };

type Told<Name extends keyof operations, Status extends number> = Status extends keyof operations[Name]["responses"]
  ? operations[Name]["responses"][Status] extends { content: { "application/json": infer Json } } ? Json : never
  : never;

declare const process: { env: Record<string, string> };
const { API: api, DRAGOMAN_KEY: key, SESSION: session } = process.env as { [name: string]: string };

async function send(path: keyof paths, names: Record<string, string> = {}, body?: unknown, headers: Record<string, string> = {}, query = "") {
  const url = api + path.replace(/\{(\w+)\}/g, (_, name) => names[name] ?? session!) + query;
  const own: Record<string, string> = { authorization: `Bearer ${key}`, ...headers };
  const answer = await fetch(
    url,
    body === undefined ? { headers: own } : { method: "POST", headers: { ...own, "content-type": "application/json" }, body: JSON.stringify(body) },
  );
  if (!answer.ok) throw new Error(((await answer.json()) as Schemas["Problem"]).detail);
  return answer;
}

const posting = "/v1/sessions/{session_id}/events";
const calls = (await (await send("/v1/calls")).json()) as Told<"listCalls", 200>;
const call = calls.data[0]!;
console.log(call.state);
const able = (await (await send("/v1/capabilities")).json()) as Told<"listCapabilities", 200>;
console.log(able.data[0]!.runtime);
console.log((await send(posting, {}, message)).status);
for (const _ of [1, 2]) {
  const plain: Posted = { kind: "message.posted", content: "Your turn, Finn!" };
  const posted = await send(posting, {}, plain, { "Idempotency-Key": "order-4711" });
  console.log([posted.status, posted.headers.get("idempotency-replayed")].filter((told) => told !== null).join(" "));
}
const followed = await send("/v1/sessions/{session_id}/events/stream", {}, undefined, { "Last-Event-ID": "0" });
let text = "";
for await (const piece of followed.body!.pipeThrough(new TextDecoderStream())) {
  text += piece;
  const shown = text.match(/^event: message.posted\ndata: (.*)\n/m);
  if (shown) {
    console.log((JSON.parse(shown[1]!) as Schemas["Envelope"]).event.kind);
    break;
  }
}
const waiting = (await (await send("/v1/interactions")).json()) as Told<"listInteractions", 200>;
const names = { interaction_id: waiting.data[0]!.interaction_id, call_id: call.call_id };
const answered = (await (await send("/v1/interactions/{interaction_id}/answer", names, answer)).json()) as Told<"answerInteraction", 200>;
console.log(answered.state);
console.log((await send("/v1/calls/{call_id}/progress", names, progress)).status);
const settled = (await (await send("/v1/calls/{call_id}/outcome", names, outcome)).json()) as Told<"settleCall", 200>;
console.log(settled.state);
const called = await send("/v1/sessions/{session_id}/calls", {}, wanted, {}, `?wait=${within.wait}`);
console.log(called.status, ((await called.json()) as Told<"callTool", 200>).outcome?.result);

export function said(envelope: Schemas["Envelope"]): string {
  return envelope.event.kind === "message.posted" ? envelope.event.author.role : envelope.event.kind;
}

type Asked = webhooks["tool.requested"]["post"]["requestBody"]["content"]["application/json"];
export function settle(asked: Asked): Schemas["OutcomeForm"] {
  return asked.data.tool === "ask_for_cards" ? outcome : { outcome: "failure", error: `no tool ${asked.type}` };
}

export const all = [message, picture, opened, progress, canceled, many, answer, kindless, strange];
