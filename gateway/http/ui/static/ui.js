// Keyboard, copy buttons, times and live updates. Every page works without this file.

const root = document.documentElement;
root.classList.add("live");
const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
const store = {
  get: (name) => { try { return localStorage.getItem(`dragoman.${name}`); } catch { return null; } },
  set: (name, value) => { try { localStorage.setItem(`dragoman.${name}`, value); } catch { /* private mode */ } },
};

// Times ---------------------------------------------------------------------------------------------------

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function ago(at) {
  const seconds = (Date.now() - at) / 1000;
  const whole = Math.max(1, Math.round(Math.abs(seconds)));
  const [size, name] = UNITS.find(([size]) => whole >= size);
  const rest = size === 60 ? whole % 60 : 0;
  const text = `${Math.floor(whole / size)} ${name}${rest ? ` ${rest} s` : ""}`;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

function showTimes() {
  const absolute = store.get("times") === "absolute";
  const zone = store.get("zone") === "local" ? "local" : "UTC";
  root.classList.toggle("absolute", absolute);
  $("[data-zone]")?.replaceChildren(zone);
  for (const time of $$("time")) {
    const at = new Date(time.dateTime);
    const whole = zone === "UTC" ? time.title.replace(" UTC", "") : local(at).slice(0, time.title.length - 4);
    // A moment of the same day as its turn has no date.
    const text = "abs" in time.dataset ? whole.slice(-time.textContent.length) : absolute ? `${whole} ${zone}` : ago(at.getTime());
    if (time.textContent !== text) time.textContent = text;
  }
}

function local(at) {
  return new Date(at.getTime() - 60000 * at.getTimezoneOffset()).toISOString().replace("T", " ").replace("Z", "");
}

function toggleZone() {
  store.set("zone", store.get("zone") === "local" ? "UTC" : "local");
  showTimes();
}

function toggleTimes() {
  store.set("times", store.get("times") === "absolute" ? "relative" : "absolute");
  showTimes();
}

// Clicks --------------------------------------------------------------------------------------------------

async function copy(button, text) {
  const label = button.textContent, icon = button.classList.contains("copy");
  button.classList.add("done");
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = icon ? "✓" : "Copied";
  } catch {
    button.textContent = icon ? "✕" : "Not allowed";
  }
  setTimeout(() => { button.textContent = label; button.classList.remove("done"); }, 1500);
}

async function copyFrom(button, address) {
  const response = await fetch(address);
  if (response.ok) copy(button, await response.text());
}

async function expand(link) {
  const row = link.closest(".event, tr");
  const open = row.classList.contains("event") ? $(".detail-in", row) : row.nextElementSibling?.matches(".opened") && row.nextElementSibling;
  open?.remove();
  if (open?.dataset.of === link.href) return;
  const response = await fetch(link.href);
  if (!response.ok) { location.href = link.href; return; }
  const detail = $("#detail", parse(await response.text()));
  if (!detail) { location.href = link.href; return; }
  detail.removeAttribute("id");
  detail.dataset.of = link.href;
  if (row.classList.contains("event")) {
    detail.className = "detail-in";
    row.append(detail);
  } else {
    const below = document.createElement("tr");
    below.dataset.of = link.href;
    below.className = "opened below";
    const cell = below.insertCell();
    cell.colSpan = row.cells.length;
    cell.append(detail);
    row.after(below);
  }
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("button, a, time[data-rel]");
  if (!target) return;
  if (target.matches("time")) { toggleTimes(); return; }
  const data = target.dataset;
  if ("copy" in data) copy(target, data.copy);
  else if ("copyJson" in data) copy(target, $("pre", target.closest("details")).textContent);
  else if ("copyText" in data) copy(target, $("code", target.parentElement).textContent);
  else if ("copyStory" in data) copyFrom(target, data.copyStory);
  else if ("times" in data) toggleTimes();
  else if ("zone" in data) toggleZone();
  else if ("help" in data) showHelp();
  else if ("fresh" in data) location.reload();
  else if ("expand" in data && !event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); expand(target); }
});

// Keyboard ------------------------------------------------------------------------------------------------

const ROWS = "[data-list] > [data-id] a.main, [data-list] > tbody > tr a.main, .card summary, .card a, .card button, .turn > summary, .turn[open] .event > .seq, .found .event > .seq, .steps .seq";

function move(step) {
  const rows = $$(ROWS).filter((one) => one.checkVisibility());
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function showHelp() {
  const dialog = document.getElementById("help");
  const box = document.getElementById("shortcuts");
  box.checked = store.get("shortcuts") !== "off";
  box.onchange = () => store.set("shortcuts", box.checked ? "on" : "off");
  dialog.showModal();
}

const KEYS = {
  "/": () => document.getElementById("search").focus(),
  "j": () => move(1),
  "k": () => move(-1),
  "n": () => { const button = $("[data-fresh]"); if (button && !button.hidden) button.click(); },
  "t": toggleTimes,
  "?": showHelp,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  if (event.target.closest("input, textarea, select, [contenteditable], dialog[open]")) return;
  if (store.get("shortcuts") === "off" && event.key !== "?") return;
  event.preventDefault();
  KEYS[event.key]();
});

// Live updates --------------------------------------------------------------------------------------------

// A page costs the gateway its time: the pause after an update is 50 times as long as the update took, within these
// limits, and never below 10 times.
const [LEAST, MOST] = [1000, 2500];
const banner = document.getElementById("banner");
const SILENCE = 15000;
let stream = null, lost = null, timer = null, updated = 0, pause = LEAST, busy = false, again = false;

function parse(html) {
  return new DOMParser().parseFromString(html, "text/html");
}

function report(moment, text) {
  lost ??= moment;
  const since = document.createElement("time");
  since.dateTime = lost.toISOString();
  since.textContent = since.dateTime.slice(11, 16);
  since.title = `${since.dateTime.slice(0, 10)} ${since.textContent} UTC`;
  since.dataset.abs = "";
  banner.replaceChildren("Not live since ", since, `; ${text}.`);
  showTimes();
  banner.hidden = false;
}

// The names of server-sent events are kinds of the API, so the stream is read as text: any event means a change.
async function connect() {
  const address = document.body.dataset.live;
  if (!address || stream || document.hidden) return;
  const own = stream = new AbortController();
  let heard = Date.now();
  const watch = setInterval(() => { if (Date.now() - heard > SILENCE) own.abort(); }, 1000);
  try {
    const response = await fetch(address, { signal: own.signal, headers: { accept: "text/event-stream" } });
    if (!response.ok) throw new Error(response.status);
    if (lost) { lost = null; banner.hidden = true; schedule(); }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let lines = ""; ;) {
      const { done, value } = await reader.read();
      if (done) break;
      heard = Date.now();
      lines += value;
      if (/^data:/m.test(lines)) schedule();
      lines = lines.slice(lines.lastIndexOf("\n") + 1);
    }
  } catch { /* reported below */ }
  clearInterval(watch);
  if (stream !== own) return;
  stream = null;
  report(new Date(), "reconnecting");
  setTimeout(connect, 2000 + 1000 * Math.random());
}

function disconnect() {
  const own = stream;
  stream = null;
  own?.abort();
}

function schedule() {
  if (timer || document.hidden) return;
  if (busy) { again = true; return; }
  timer = setTimeout(update, Math.max(150, updated + pause - Date.now()));
}

async function update() {
  timer = null;
  busy = true;
  again = false;
  const began = Date.now();
  try {
    const address = new URL(location.href);
    const seen = $("[data-seen]");
    if (seen) address.searchParams.set("seen", $$("[data-id]", seen).map((one) => one.dataset.id).slice(0, 50).join(","));
    const response = await fetch(address);
    if (!response.ok || response.redirected) throw new Error(response.status);
    const text = await response.text();
    const took = Date.now() - began;
    pause = Math.max(10 * took, Math.min(MOST, Math.max(LEAST, 50 * took)));
    merge(parse(text));
    showTimes();
  } catch {
    report(new Date(), "reload the page");
  } finally {
    updated = Date.now();
    busy = false;
    if (again) schedule();
  }
}

function isEdited(field) {
  if (field.matches("select")) return field.selectedIndex !== Math.max(0, [...field.options].findIndex((one) => one.defaultSelected));
  return field.value !== field.defaultValue || field.checked !== field.defaultChecked;
}

const isBusy = (element) => element.contains(document.activeElement) && document.activeElement.matches("input, textarea, select, button, summary")
  || $$("input, textarea, select", element).some(isEdited)
  || $(".menu[open], .group[open], .detail-in, .opened", element) || element.matches(":hover:active");

// Each rendering of a form has its own key, and times depend on the moment and the zone; neither alone is a change.
const shown = (element) => element.outerHTML.replace(/(name="once" value=")[^"]*/g, "$1").replace(/(<time [^>]*>)[^<]*/g, "$1");

function replace(old, fresh) {
  if (isBusy(old)) { old.classList.toggle("gone", fresh.classList.contains("gone")); return; }
  if (shown(old) === shown(fresh)) return;
  const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const open = new Map($$("details[data-id]", old).map((one) => [one.dataset.id, one.open]));
  const copy = document.importNode(fresh, true);
  for (const one of $$("details[data-id]", copy)) if (open.has(one.dataset.id)) one.open = open.get(one.dataset.id);
  old.replaceWith(copy);
  if (focused) $(`[href="${CSS.escape(focused)}"]`, copy)?.focus();
}

function merge(page) {
  document.title = page.title;
  for (const part of $$("[data-part]")) {
    const fresh = $(`[data-part="${part.dataset.part}"]`, page);
    if (fresh) replace(part, fresh);
  }
  const list = $("[data-list]"), other = $("[data-list]", page);
  if (!list || list.closest("[data-part]")) {
    if (!list && other) location.reload();
    return;
  }
  const rows = new Map($$("[data-id]", other ?? page.createElement("ul")).map((row) => [row.dataset.id, row]));
  for (const row of $$("[data-id]", list)) {
    const fresh = rows.get(row.dataset.id);
    if (fresh) replace(row, fresh);
    else row.classList.add("gone");
    rows.delete(row.dataset.id);
  }
  const button = $("[data-fresh]");
  if (button) {
    button.hidden = rows.size === 0;
    button.textContent = `${rows.size} new`;
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) disconnect();
  else { connect(); schedule(); }
});
if (matchMedia("(max-width: 640px)").matches) for (const one of $$(".frames[open], .talk[open]")) one.open = false;
setInterval(showTimes, 15000);
showTimes();
connect();
