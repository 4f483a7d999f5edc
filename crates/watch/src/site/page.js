"use strict";
// Everything that comes from outside is put in as text or as the value of an attribute, never as HTML.

const POLL_MS = 2000;
const GIVE_UP_MS = 5000;
const STALE_MS = 6000;
const CHART_FLOOR = 1e-6;
const FEW_LENDERS = 24;

let state = null;
let readAt = 0;
let failure = "";
let isGone = false;
let page = 0;
const opened = new Set();
const domains = new Map();

// ---- building and updating elements ----

const SVG = "http://www.w3.org/2000/svg";

/** An element as a value: tag, attributes, children. */
const h = (tag, attributes, ...children) => ({ tag, attributes: attributes || {}, children: children.flat(9).filter((one) => one !== null && one !== undefined && one !== false && one !== "") });

function make(node, inSvg) {
  if (typeof node !== "object") return document.createTextNode(String(node));
  const isSvg = inSvg || node.tag === "svg";
  const element = isSvg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  update(element, node, isSvg);
  return element;
}

/** Makes an element what a value says, and leaves alone what is so already: focus and selection stay. */
function update(element, node, isSvg) {
  for (const name of element.getAttributeNames()) if (!(name in node.attributes)) element.removeAttribute(name);
  for (const [name, value] of Object.entries(node.attributes)) {
    if (name === "onclick") continue;
    if (value === false || value === undefined || value === null) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
  }
  element.onclick = node.attributes.onclick || null;
  fill(element, node.children, isSvg);
}

function fill(element, children, isSvg) {
  children.forEach((child, index) => {
    const old = element.childNodes[index];
    if (!old) element.appendChild(make(child, isSvg));
    else if (typeof child !== "object") {
      if (old.nodeType !== Node.TEXT_NODE) old.replaceWith(make(child, isSvg));
      else if (old.data !== String(child)) old.data = String(child);
    } else if (old.nodeType === Node.ELEMENT_NODE && old.localName === child.tag && (old.dataset.key || "") === String(child.attributes["data-key"] || "")) update(old, child, isSvg || child.tag === "svg");
    else {
      // A row that moved is moved, so that what has the focus keeps it.
      const key = child.attributes["data-key"];
      const moved = key && [...element.children].slice(index).find((other) => other.dataset.key === key);
      if (moved) { element.insertBefore(moved, old); update(moved, child, isSvg); } else element.insertBefore(make(child, isSvg), old);
    }
  });
  while (element.childNodes.length > children.length) element.lastChild.remove();
}

const show = (id, ...children) => fill(document.getElementById(id), children.flat(9).filter(Boolean), false);

// ---- words ----

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return (unit === 0 ? count : count.toFixed(1)) + " " + units[unit];
}

function span(ms) {
  const s = Math.floor(ms / 1000);
  if (ms < 1000) return Math.round(ms) + " ms";
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  if (s < 172800) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " days";
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return Math.round(value * 1e6) + " µs";
  if (value < 1) return (value * 1000).toFixed(value < 0.01 ? 1 : 0) + " ms";
  return value.toFixed(1) + " s";
}

const count = (number, thing) => number.toLocaleString("en") + " " + thing + (number === 1 ? "" : "s");
const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
const WORRY = [["well", "good"], ["look soon", ""], ["look today", "warn"], ["may pass", "warn"], ["act now", "bad"]];
const chip = (text, kind) => h("span", { class: ("chip " + (kind || "")).trim() }, text);
const head = (names, numbers) => h("thead", {}, h("tr", {}, names.map((name, index) => h("th", { scope: "col", class: numbers.includes(index) ? "number" : null }, name))));
const cell = (label, value, kind) => h("td", { "data-label": label, class: kind || null }, h("span", {}, value));

// ---- sections ----

function person() {
  const all = state.person;
  if (all.length === 0) return [h("p", {}, state.is_complete ? [!isGone && chip("well", "good"), isGone ? "Nothing needed a person when the dashboard answered last." : " Nothing needs a person."] : "Asking everybody for the first time…")];
  const more = state.counts.person - all.length;
  return [
    h("ul", { class: "person" }, all.map((one) => {
      const isPage = one.severity === "page";
      const urgency = one.due ? (isPage ? ["act now", "bad"] : ["today", "warn"]) : ["may pass by itself", isPage ? "warn" : ""];
      return h("li", { "data-key": one.alert + " " + one.subject, class: one.due ? (isPage ? "bad" : "warn") : null },
        chip(urgency[0], urgency[1]), " ", h("span", { class: "subject" }, one.subject), one.others > 0 && [" and ", one.others.toLocaleString("en"), " more"],
        h("span", { class: "quiet" }, " · for " + span(one.for_s * 1000)),
        h("div", {}, one.sentence),
        one.command && h("div", { class: "command" }, h("code", {}, one.command),
          h("button", { type: "button", "aria-label": "Copy the command " + one.command, onclick: (event) => copy(event.currentTarget, one.command) }, "Copy")));
    })),
    more > 0 && h("p", { class: "quiet" }, "and " + more.toLocaleString("en") + " more, less urgent"),
  ];
}

async function copy(button, text) {
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch (error) { button.textContent = "Select it by hand"; }
}

function risks() {
  if (state.risks.length === 0) return [h("p", { class: "quiet" }, "No open journal is known, so nothing is known to be at risk.")];
  const more = state.counts.failures - state.risks.length;
  const rest = state.risks[state.risks.length - 1].bytes === 0 ? " would take nothing" : " would take less";
  return [h("table", {}, head(["If this is lost", "Would be gone", "Oldest", "Journals"], [1, 2, 3]), h("tbody", {}, state.risks.map((row) => {
    const isBad = row.is_alone && row.bytes > 0;
    return h("tr", { "data-key": row.lost }, h("th", { scope: "row" }, row.lost, isBad && [" ", chip("should be nothing", "bad")]),
      cell("Would be gone", row.bytes === 0 ? "nothing" : bytes(row.bytes), "number" + (isBad ? " bad-text" : row.bytes === 0 ? " quiet" : "")),
      cell("Oldest", row.bytes === 0 ? "–" : span(row.age_ms), "number"), cell("Journals", row.journals.toLocaleString("en"), "number"));
  }))), more > 0 && h("p", { class: "note" }, count(more, "further failure") + rest)];
}

function journalState(row) {
  if (row.error) return chip("no answer", "bad");
  if (row.fenced !== null) return chip("fenced", "bad");
  if (row.disk_error) return chip("disk failed", "bad");
  if (row.disk_refused) return chip("disk refuses", "bad");
  if (row.blocked) return chip("waits for disk", "warn");
  if (row.lenders.length === 0) return chip("no lenders", "");
  if (row.worry > 0) return chip(WORRY[row.worry][0], WORRY[row.worry][1]);
  if (row.on_battery) return chip("on battery", "warn");
  return chip("well", "good");
}

function journals() {
  const counts = state.counts;
  if (counts.journals === 0) return [h("p", { class: "quiet" }, state.is_complete ? "No process of this machine has a journal open. Journals of other machines are shown when their metrics are named: netram dashboard --scrape HOST:PORT" : "Looking…")];
  const searched = document.getElementById("search").value.trim() !== "";
  const shown = searched ? count(counts.journals_matched, "journal") + " of " + counts.journals.toLocaleString("en") + " found" : count(counts.journals, "journal");
  if (counts.journals_matched === 0) return [h("p", { class: "quiet" }, "No journal has this text. Lenders are searched as well, below.")];
  const rows = state.journals.flatMap((row) => journal(row));
  const turn = (by) => () => { page = Math.max(0, counts.page + by); poll(); };
  return [
    h("table", {}, h("caption", {}, shown + ", the worst first; " + count(counts.journals_worried, "journal") + " with trouble"),
      head(["State", "Journal", "Members", "Not on disk", "Lost with all", "p50", "p99", "p99.9"], [3, 4, 5, 6, 7]), h("tbody", {}, rows)),
    counts.pages > 1 && h("div", { class: "pages" },
      h("button", { type: "button", disabled: counts.page === 0, onclick: turn(-1) }, "Previous"),
      h("span", {}, "page " + (counts.page + 1) + " of " + counts.pages),
      h("button", { type: "button", disabled: counts.page + 1 >= counts.pages, onclick: turn(1) }, "Next")),
  ];
}

function journal(row) {
  const key = row.host + ":" + row.path;
  const isOpen = opened.has(key);
  const all = row.risks.find((risk) => risk.lost === "all");
  const [p50, p99, p999] = row.hour ? row.hour.quantiles : [null, null, null];
  const toggle = () => { if (isOpen) opened.delete(key); else opened.add(key); render(); };
  const line = h("tr", { "data-key": key },
    cell("State", journalState(row)),
    h("th", { scope: "row" }, h("button", { type: "button", class: "name", "aria-expanded": String(isOpen), onclick: toggle }, row.name),
      h("span", { class: "sub" }, row.kind + (row.host ? " at " + row.host : " on this machine"))),
    cell("Members", row.members + " of " + row.members_wanted, "wide"), cell("Not on disk", bytes(row.unsynced), "number wide"),
    cell("Lost with all", !all || all.bytes === 0 ? "nothing" : bytes(all.bytes) + ", " + span(all.age_ms), "number"),
    cell("p50", seconds(p50), "number wide"), cell("p99", seconds(p99), "number wide"), cell("p99.9", seconds(p999), "number"));
  if (!isOpen) return [line];
  const troubles = [row.error, row.blocked && "commits wait for the local disk: " + row.blocked, row.disk_error, row.disk_refused, row.fenced !== null && "a newer writer has the journal", row.on_battery && "this machine is on battery"].filter(Boolean);
  const lenders = row.lenders.map((lender) => h("li", {}, lender.address + (lender.domain ? " (" + lender.domain + ")" : "") + ": " + (lender.member ? "member" : "no member") + (lender.why_not ? ", " + lender.why_not : "")));
  const risk = row.risks.map((one) => h("li", {}, one.lost + ": " + (one.bytes === 0 ? "nothing would be lost" : bytes(one.bytes) + " would be lost, the oldest " + span(one.age_ms) + " old")));
  return [line, h("tr", { class: "more", "data-key": "more " + key }, h("td", { colspan: 8 },
    troubles.map((text) => h("p", { class: "bad-text" }, text)),
    h("p", {}, row.path + (row.pid ? " · process " + row.pid : "") + " · " + row.copies + " · log " + bytes(row.used) + " of " + bytes(row.capacity) + (row.acked ? " · acknowledged to LSN " + row.acked : "") + (row.hour ? " · " + count(row.hour.commits, "commit") + " in the last hour" : "")),
    row.hour && row.hour.commits > 0 && h("p", {}, "Half of all commits waited up to " + seconds(p50) + ", 99 % up to " + seconds(p99) + ", 99.9 % up to " + seconds(p999) + ". The local disk lacks " + bytes(row.unsynced) + "."),
    lenders.length > 0 && [h("p", {}, "Lenders"), h("ul", {}, lenders)],
    risk.length > 0 && [h("p", {}, "If memory is lost"), h("ul", {}, risk)],
    h("p", { class: "note" }, "answered at " + clock(row.seen_ms))))];
}

function meter(used, all) {
  const share = all > 0 ? Math.min(1, used / all) : 0;
  return h("svg", { class: "meter", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("rect", { width: 100, height: 6, rx: 3 }), h("rect", { class: "full", width: Math.round(share * 100), height: 6, rx: 3 }));
}

function lenderState(row) {
  if (!row.error) return [chip(row.state, row.worry > 1 ? "warn" : row.state.startsWith("lending") ? "good" : "warn"), row.on_battery && [" ", chip("on battery", "warn")]];
  const since = row.seen_ms > 0 ? "answered last at " + clock(row.seen_ms) : "has not answered since the dashboard began";
  return [chip("no answer", "bad"), h("span", { class: "sub" }, row.error + " · " + since)];
}

function lenders() {
  const counts = state.counts;
  if (counts.lenders === 0) return [h("p", { class: "quiet" }, state.is_complete ? "No lender was found. Name lenders in /etc/netram/cluster.toml, or let them announce themselves: netram lender serve --announce" : "Looking…")];
  const body = [];
  for (const domain of state.domains) {
    const rows = state.lenders.filter((row) => row.domain === domain.domain);
    if (rows.length === 0) continue;
    // Of many lenders only those of a domain with trouble are shown unasked.
    const isCalm = counts.lenders_matched > FEW_LENDERS && rows.every((row) => !row.error && row.worry === 0);
    const isOpen = domains.has(domain.domain) ? domains.get(domain.domain) : !isCalm;
    const toggle = () => { domains.set(domain.domain, !isOpen); render(); };
    body.push(h("tr", { class: "domain", "data-key": "domain " + domain.domain }, h("th", { scope: "colgroup", colspan: 6 },
      h("button", { type: "button", class: "name", "aria-expanded": String(isOpen), onclick: toggle }, domain.domain || "domain unknown"), " ",
      h("span", { class: "quiet" }, count(domain.lenders, "lender") + ", " + bytes(domain.used) + " of " + bytes(domain.lent) + " used"), domain.silent > 0 && [" ", chip(count(domain.silent, "lender") + " without answer", "bad")])));
    if (isOpen) for (const row of rows) body.push(h("tr", { "data-key": row.address },
      h("th", { scope: "row" }, row.name || row.address, row.name && h("span", { class: "sub" }, row.address)),
      h("td", { "data-label": "State" }, h("span", {}, lenderState(row))),
      h("td", { "data-label": "Used", class: "number" }, row.lent ? h("span", {}, bytes(row.used), meter(row.used, row.lent)) : "–"),
      cell("Free", row.lent ? bytes(row.free) : "–", "number wide"), cell("Lent", row.lent ? bytes(row.lent) : "–", "number"),
      cell("Journals", row.journals_max ? row.journals + " of " + row.journals_max : String(row.journals), "number")));
  }
  const matched = counts.lenders_matched < counts.lenders ? count(counts.lenders_matched, "lender") + " of " + counts.lenders + " found" : count(counts.lenders, "lender");
  return [h("table", {}, h("caption", {}, matched + "; " + (counts.lenders_silent ? counts.lenders_silent + " without answer" : "all answer")), head(["Lender", "State", "Used", "Free", "Lent", "Journals"], [2, 3, 4, 5]), h("tbody", {}, body))];
}

function latency() {
  const hour = state.hour;
  if (hour.commits === 0) return [h("p", { class: "quiet" }, "No commit was seen in the last hour, or since the dashboard began.")];
  const figure = (label, kind, value) => h("div", {}, h("b", {}, seconds(value)), h("span", { class: kind }, "● "), label);
  const [p50, p99, p999] = hour.quantiles;
  return [
    h("div", { class: "figures" }, figure("half of all", "p50", p50), figure("99 %", "p99", p99), figure("99.9 %", "p999", p999), h("div", {}, h("b", {}, hour.commits.toLocaleString("en")), hour.commits === 1 ? "commit" : "commits")),
    chart(),
    h("p", { class: "note" }, "Time that commits waited, of all journals together. Exact to a half. Each journal's own percentiles are in its row."),
  ];
}

function chart() {
  // As wide as there is room, so that letters keep their size.
  const WIDTH = Math.max(280, document.getElementById("latency-body").clientWidth), HEIGHT = 220, LEFT = 62, RIGHT = 8, TOP = 8, BOTTOM = 26;
  const points = state.curve, told = points.filter(Boolean).flat();
  if (told.length === 0) return null;
  const low = Math.floor(Math.log10(Math.max(CHART_FLOOR, Math.min(...told))));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...told))));
  const SLOTS = 180;
  const x = (index) => LEFT + ((SLOTS - points.length + index + 0.5) / SLOTS) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((high - Math.log10(Math.max(CHART_FLOOR, value))) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const grid = [];
  for (let power = low; power <= high; power += 1) grid.push(h("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(10 ** power), y2: y(10 ** power) }), h("text", { x: LEFT - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, seconds(10 ** power)));
  for (const [share, label, anchor] of [[0, "an hour ago", "start"], [0.5, "30 min ago", "middle"], [1, "now", "end"]]) grid.push(h("text", { x: LEFT + share * (WIDTH - LEFT - RIGHT), y: HEIGHT - 6, "text-anchor": anchor }, label));
  const lines = ["p50", "p99", "p999"].flatMap((kind, which) => {
    let path = "", dots = [];
    points.forEach((point, index) => {
      if (!point) return;
      const at = x(index).toFixed(1) + " " + y(point[which]).toFixed(1);
      if (points[index - 1]) path += "L" + at; else path += "M" + at;
      if (!points[index - 1] && !points[index + 1]) dots.push(h("circle", { class: kind, cx: x(index), cy: y(point[which]), r: 2.5 }));
    });
    return [h("path", { class: kind, style: null, d: path }), ...dots];
  });
  return h("svg", { class: "chart", viewBox: "0 0 " + WIDTH + " " + HEIGHT, role: "img", "aria-label": "Half of all commits waited up to " + seconds(state.hour.quantiles[0]) + ", 99 % up to " + seconds(state.hour.quantiles[1]) + ", 99.9 % up to " + seconds(state.hour.quantiles[2]) }, grid, lines);
}

function events() {
  if (state.events.length === 0) return [h("p", { class: "quiet" }, "Nothing has happened since the dashboard began.")];
  return [h("ul", { class: "events" }, state.events.map((event) => h("li", {}, h("time", { class: "quiet", datetime: new Date(event.unix_ms).toISOString() }, clock(event.unix_ms)), h("span", {}, h("b", {}, event.subject), ": " + event.what))))];
}

// ---- the whole ----

function verdict() {
  const { person_due, person, lenders, lenders_silent, journals } = state.counts;
  if (isGone) return [chip("unknown: the dashboard does not answer", "bad")];
  const told = count(lenders, "lender") + (lenders_silent ? " (" + lenders_silent + " silent)" : "") + " · " + count(journals, "journal");
  const first = person_due > 0 ? chip(person_due === 1 ? "1 thing needs a person" : person_due + " things need a person", state.person[0].severity === "page" ? "bad" : "warn")
    : person > 0 ? chip("watching " + person + (person === 1 ? " thing" : " things"), "warn") : state.is_complete ? chip("well", "good") : chip("asking…");
  return [first, " ", h("span", { class: "quiet" }, told)];
}

function render() {
  if (!state) return;
  show("verdict", verdict());
  show("person-body", person());
  show("risk-body", risks());
  show("journals-body", journals());
  show("lenders-body", lenders());
  show("latency-body", latency());
  show("events-body", events());
  document.title = (state.counts.person_due > 0 ? "(" + state.counts.person_due + ") " : "") + "netram";
}

function age() {
  const since = Date.now() - readAt;
  const banners = [];
  const wasGone = isGone;
  isGone = failure !== "" && since > GIVE_UP_MS;
  document.body.classList.toggle("gone", isGone);
  if (isGone !== wasGone) render();
  if (state) {
    const old = since + state.age_ms;
    show("age", old < 1000 ? "data from " + clock(state.now_ms) : "data " + span(old) + " old, from " + clock(state.now_ms));
    if (isGone) banners.push("The dashboard does not answer (" + failure + "): what you see is " + span(old) + " old. On its machine: systemctl status netram-dashboard, or start netram dashboard again.");
    else if (!failure && state.age_ms > STALE_MS) banners.push("The dashboard answers but has collected nothing for " + span(state.age_ms) + ": is its machine overloaded?");
    banners.push(...state.remarks, ...state.silent_pages.map(([name, why]) => "The page of metrics at " + name + " does not answer: " + why));
  } else if (failure) banners.push("The dashboard does not answer: " + failure);
  show("banner", banners.slice(0, 5).map((text) => h("p", { class: "banner" }, text)));
}

let asking = null;
async function poll() {
  if (asking) asking.abort();
  const mine = (asking = new AbortController());
  const patience = setTimeout(() => mine.abort(), GIVE_UP_MS);
  const search = document.getElementById("search").value;
  try {
    const answer = await fetch("state.json?page=" + page + "&search=" + encodeURIComponent(search), { signal: mine.signal, cache: "no-store" });
    if (answer.status === 401) location.reload();
    if (!answer.ok) throw new Error("it says " + answer.status);
    state = await answer.json();
    readAt = Date.now();
    page = state.counts.page;
    failure = "";
    render();
  } catch (error) {
    if (asking !== mine) return;
    failure = error.name === "AbortError" ? "no answer in time" : error.name === "TypeError" ? "nothing listens there" : error.message;
  } finally { clearTimeout(patience); }
  age();
}

const THEMES = ["system", "light", "dark"];
function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = "Theme: " + name;
  try { localStorage.setItem("netram-theme", name); } catch (error) { /* The choice lasts as long as the page. */ }
}

let chosen = "system";
try { chosen = THEMES.includes(localStorage.getItem("netram-theme")) ? localStorage.getItem("netram-theme") : "system"; } catch (error) { /* As the system has it. */ }
theme(chosen);
document.getElementById("theme").addEventListener("click", () => { chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]; theme(chosen); });
document.getElementById("search-form").addEventListener("submit", (event) => event.preventDefault());
let typing = 0;
document.getElementById("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { page = 0; poll(); }, 150); });
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !(event.target instanceof HTMLInputElement)) { event.preventDefault(); document.getElementById("search").focus(); }
});
addEventListener("resize", render);
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
setInterval(() => { if (!document.hidden) poll(); }, POLL_MS);
setInterval(age, 500);
poll();
