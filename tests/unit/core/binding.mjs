// Prints the binding of each line of the standard input, `{"v": 1, ...}`: the SHA-256 of its compact JSON with sorted members.
// Numbers stay as they are written: JavaScript's own would round 2^60 and write 1.0 as 1.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const read = (text) =>
  JSON.parse(text.replace(/"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g, (found) => (found[0] === '"' ? `"s${found.slice(1)}` : `"n${found}"`)));
const byCodePoint = (one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other));
const write = (value) => {
  if (typeof value === "string") return value[0] === "n" ? value.slice(1) : JSON.stringify(value.slice(1));
  if (Array.isArray(value)) return `[${value.map(write)}]`;
  if (value === null || typeof value !== "object") return String(value);
  return `{${Object.keys(value).sort(byCodePoint).map((key) => `${write(key)}:${write(value[key])}`)}}`;
};

for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  console.log(createHash("sha256").update(write(read(line))).digest("hex"));
}
