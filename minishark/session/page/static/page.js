"use strict";
/* The page: draws views that the server sends, each complete in itself. Texts of users become text
   nodes only, never markup. */

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colours, which colour-blind people can tell apart.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a800", "#7a7f87"];
const colour = (i) => COLOURS[((i % COLOURS.length) + COLOURS.length) % COLOURS.length];

/* ---- elements ---- */

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(4)) {
    if (child == null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const $ = (id) => document.getElementById(id);

/* ---- numbers with units ---- */

const grouped = new Intl.NumberFormat("en");
const whole = (n) => grouped.format(Math.round(n));
function scaled(n, units, base) {
  let i = 0;
  while (Math.abs(n) >= base && i < units.length - 1) { n /= base; i += 1; }
  const digits = i === 0 || Math.abs(n) >= 100 ? 0 : Math.abs(n) >= 10 ? 1 : 2;
  return `${n.toFixed(digits)}${units[i]}`;
}
const count = (n) => n == null ? "–" : Math.abs(n) < 100000 ? whole(n) : scaled(n, ["", " k", " M", " bn", " tn"], 1000);
const size = (n) => n == null ? "–" : scaled(n, [" B", " kB", " MB", " GB", " TB"], 1000);
function time(t) {
  if (t == null) return "–";
  if (t < 0.001) return `${Math.round(t * 1e6)} µs`;
  if (t < 1) return `${(t * 1e3).toFixed(t < 0.01 ? 2 : t < 0.1 ? 1 : 0)} ms`;
  if (t < 60) return `${t.toFixed(t < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(t / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(t % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
const share = (part, all) => all ? `${(100 * part / all).toFixed(part && part < all && part / all > .995 ? 1 : 0)} %` : "–";
const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : noun.endsWith("y") ? "" : "s"}`;
const clock = (t) => new Date(t * 1000).toLocaleTimeString([], { hour12: false });
function ago(t) {
  const d = Math.max(0, serverNow() - t);
  if (exported || d > 86400) return new Date(t * 1000).toLocaleString([], { hour12: false });
  return d < 60 ? `${Math.floor(d)} s ago` : d < 3600 ? `${Math.floor(d / 60)} min ago` : clock(t);
}
const exact = (n, what) => n == null ? null : `${whole(n)} ${what}`;

/* ---- pieces ---- */

const table = (heads, rows, options = {}) => h("div", { class: "scroll" }, h("table", { class: options.class },
  options.caption && h("caption", { class: "note" }, options.caption),
  h("thead", null, h("tr", null, heads.map(([text, kind, title]) => h("th", { class: kind, scope: "col", title }, text)))),
  h("tbody", null, rows.map((row) => row.make ? keptRow(row, heads) : tableRow(row, heads)))));
const tableRow = (cells, heads, key) => h("tr", { "data-key": key }, cells.map((cell, i) => h("td", { class: heads[i] && heads[i][1] }, cell)));
/* A row of a long list, { key, data, make }: made anew only if its data are others. */
function keptRow(row, heads) {
  const json = JSON.stringify(row.data), known = shownRows.get(row.key);
  if (known && known.json === json) return h("tr", { "data-key": row.key, "data-same": true });
  return Object.assign(tableRow(row.make(row.data), heads, row.key), { json });
}
const tile = (value, label, title) => h("div", { class: "tile", title }, h("b", null, value), h("span", null, label));
const tiles = (...all) => h("div", { class: `tiles of-${all.filter(Boolean).length}` }, all.filter(Boolean));
const empty = (sentence, code) => h("div", { class: "empty" }, sentence, code && h("pre", null, code));
const swatch = (i) => h("i", { class: "swatch", style: { background: colour(i) } });
const stageChip = (i) => h("span", { class: "stagechip" }, swatch(i), `stage ${i}`);
const STATES = { running: "▶ running", waiting: "… waiting", done: "✓ done", failed: "✕ failed", cancelled: "■ cancelled", lost: "? lost", ended: "✓ ended" };
const stateChip = (state, title) => h("span", { class: `chip ${state}`, title }, STATES[state] || state);
const behind = (q) => `behind ${q.behind.slice(0, 3).join(", ") || "other tasks"}`;
const queryChip = (q) => q.behind ? stateChip("waiting", behind(q)) : stateChip(q.state);
function bar(done, all, busy = 0) {
  const full = all > 0 && done >= all;
  const part = (n) => `${all ? Math.min(100, 100 * n / all) : 0}%`;
  return h("div", { class: `bar${full ? " full" : ""}`, role: "progressbar", "aria-valuenow": done, "aria-valuemax": all, title: `${whole(done)} of ${whole(all)}` },
    h("i", { style: { "flex-basis": part(done) } }), busy ? h("i", { class: "other", style: { "flex-basis": part(busy) } }) : null);
}
const elapsed = (q) => q.state === "running"
  ? h("span", { "data-since": q.began_s }, time(Math.max(0, serverNow() - q.began_s)))
  : h("span", { title: `${q.elapsed_s} s` }, time(q.elapsed_s));

function tip(event, text) {
  const box = $("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const r = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - r.width - 8))}px`;
  box.style.top = `${event.clientY + 18 + r.height > innerHeight ? event.clientY - r.height - 10 : event.clientY + 18}px`;
}
function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

/* Sections are drawn anew when their data change, and the elements that are there become those that
   should be there: nothing flickers, a click is never lost, scroll positions, selections, the focus
   and open details survive. */
const drawn = new Map();
let shownRows = new Map();
function draw(id, data, make) {
  const key = JSON.stringify(data), target = $(id);
  if (!target || drawn.get(id) === key) return;
  drawn.set(id, key);
  const fresh = document.createElement("div");
  shownRows = new Map([...target.querySelectorAll("tr[data-key]")].map((row) => [row.dataset.key, row]));
  fresh.append(...[make(data)].flat(3).filter(Boolean));
  morphChildren(target, fresh);
}
const keyOf = (node) => node.nodeType === 1 ? node.getAttribute("data-key") : null;
const alike = (a, b) => a.nodeName === b.nodeName && keyOf(a) === keyOf(b) && a.nodeName !== "CANVAS";
function morph(old, fresh) {
  if (old.nodeType !== 1) { if (old.data !== fresh.data) old.data = fresh.data; return; }
  if (fresh.dataset && "same" in fresh.dataset) return;
  if (fresh.json) old.json = fresh.json;
  if (old.disabled && old.dataset.cancel) return;  // it was pressed
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) {
    if (name === "style") old.style.cssText = fresh.style.cssText;  // the policy allows no style attribute
    else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}
function morphChildren(old, fresh) {
  const keyed = new Map([...old.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  let next = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    let found = keyOf(child) ? keyed.get(keyOf(child)) : next;
    while (found && !keyOf(child) && keyOf(found)) found = found.nextSibling;
    if (found && alike(found, child)) {
      if (found !== next) old.insertBefore(found, next); else next = next.nextSibling;
      morph(found, child);
    } else old.insertBefore(child, next);
  }
  while (next) { const after = next.nextSibling; next.remove(); next = after; }
}
function skeleton(...ids) {
  drawn.clear();
  charts.clear();
  $("main").replaceChildren(...ids.map((id) => typeof id === "string" ? h("section", { id }) : id));
}

/* ---- timelines, on a canvas ---- */

const charts = new Map();
/* Draws marks [lane, start, end, colour, ...] in seconds; dragging zooms, a double click shows all. */
function lanes(id, chart) {
  let state = charts.get(id);
  const target = $(id);
  if (!state || !target.contains(state.canvas)) {
    const canvas = h("canvas", { class: "lanes", role: "img", tabindex: 0 });
    state = { canvas, zoom: null, drag: null };
    charts.set(id, state);
    target.replaceChildren(canvas);
    const seconds = (event) => {
      const { left, width } = state.plot, [a, b] = state.range;
      return a + (b - a) * Math.min(1, Math.max(0, (event.offsetX - left) / width));
    };
    canvas.addEventListener("pointermove", (event) => {
      if (state.drag != null) { state.drag[1] = seconds(event); paint(state); return; }
      const mark = hit(state, event);
      tip(event, mark && state.chart.say(mark));
      canvas.style.cursor = mark && state.chart.click ? "pointer" : "crosshair";
    });
    canvas.addEventListener("pointerleave", (event) => tip(event, ""));
    canvas.addEventListener("pointerdown", (event) => { state.drag = [seconds(event), seconds(event)]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", (event) => {
      const [a, b] = state.drag || [0, 0];
      state.drag = null;
      if (Math.abs(b - a) > (state.range[1] - state.range[0]) / 100) state.zoom = [Math.min(a, b), Math.max(a, b)];
      else { const mark = hit(state, event); if (mark && state.chart.click) state.chart.click(mark); }
      paint(state);
    });
    canvas.addEventListener("dblclick", () => { state.zoom = null; paint(state); });
    canvas.addEventListener("keydown", (event) => { if (event.key === "Escape" || event.key === "0") { state.zoom = null; paint(state); } });
    new ResizeObserver(() => paint(state)).observe(canvas);
  }
  state.chart = chart;
  state.canvas.setAttribute("aria-label", chart.label);
  paint(state);
}
function hit(state, event) {
  const { left, width, top, lane } = state.plot, [a, b] = state.range;
  const row = Math.floor((event.offsetY - top) / lane);
  const t = a + (b - a) * (event.offsetX - left) / width, slack = 2 * (b - a) / width;
  let best = null;
  for (const mark of state.chart.marks) if (mark[0] === row && mark[1] - slack <= t && t <= mark[2] + slack) best = mark;
  return best;
}
function paint(state) {
  const { canvas, chart } = state, n = Math.max(1, chart.lanes.length);
  const wide = canvas.clientWidth;
  if (!wide) return;
  const lane = Math.max(2, Math.min(20, Math.floor(560 / n)));
  const named = lane >= 11, left = named ? Math.min(120, wide / 4) : 34, top = 4, tall = n * lane, width = wide - left - 8;
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round((tall + 28) * ratio)) {
    canvas.width = Math.round(wide * ratio); canvas.height = Math.round((tall + 28) * ratio);
    canvas.style.height = `${tall + 28}px`;
  }
  state.plot = { left, width, top, lane };
  const [a, b] = state.range = state.zoom || [0, chart.span || 1];
  const g = canvas.getContext("2d"), x = (t) => left + width * (t - a) / (b - a || 1);
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, wide, tall + 28);
  const dim = css("--dim"), line = css("--soft");
  g.font = "11px system-ui, sans-serif"; g.textBaseline = "middle"; g.textAlign = "left";
  for (let i = 0; i < n; i++) {
    if (i % 2 === 0) { g.fillStyle = line; g.globalAlpha = .55; g.fillRect(left, top + i * lane, width, lane); g.globalAlpha = 1; }
    if (named) { g.fillStyle = dim; g.fillText(chart.lanes[i] || "", 0, top + (i + .5) * lane, left - 6); }
  }
  if (!named) { g.fillStyle = dim; g.save(); g.translate(10, top + tall / 2); g.rotate(-Math.PI / 2); g.textAlign = "center"; g.fillText(`${n} executors`, 0, 0); g.restore(); }
  g.save(); g.beginPath(); g.rect(left, top, width, tall); g.clip();
  const gap = lane > 6 ? 2 : lane > 3 ? 1 : 0;
  for (const mark of chart.marks) {
    const x0 = x(mark[1]), x1 = x(mark[2]);
    if (x1 < left || x0 > left + width) continue;
    g.fillStyle = chart.paint(mark);
    g.fillRect(x0, top + mark[0] * lane + gap / 2, Math.max(1.5, x1 - x0 - (x1 - x0 > 4 ? .6 : 0)), lane - gap);
  }
  if (state.drag) { g.fillStyle = css("--mark"); g.globalAlpha = .2; const [p, q] = state.drag; g.fillRect(x(Math.min(p, q)), top, Math.abs(x(q) - x(p)), tall); }
  g.restore();
  g.fillStyle = dim; g.textAlign = "center";
  const steps = [1e-4, 2e-4, 5e-4, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600];
  const step = steps.find((each) => (b - a) / each <= Math.max(2, width / 90)) || 7200;
  for (let t = Math.ceil(a / step - 1e-9) * step; t <= b + step / 1e6; t += step) {
    g.fillText(chart.axis ? chart.axis(t) : t < step / 10 ? "0" : time(t), Math.max(left + 12, Math.min(x(t), wide - 26)), tall + 16);
  }
}

/* ---- views ---- */

function progressBar(q) {
  const all = q.tasks || 0;
  return q.state === "running" ? bar(q.done, all) : null;
}
const queryLink = (q) => h("a", { href: `#/query/${q.key}`, title: q.sql, "data-key": `q${q.key}` }, q.sql.replace(/\s+/g, " ") || `query ${q.key}`);
function cancelButton(q, label = "Cancel") {
  if (q.state !== "running" || !live.can_cancel) return null;
  return h("button", { class: "danger", "data-key": `c${q.key}`, "data-cancel": q.key, "aria-label": `Cancel query ${q.number}` }, label);
}
async function press(event) {
  const button = event.target.closest("[data-cancel], [data-why], [data-close]");
  if (!button) return;
  if ("close" in button.dataset) $("dialog").close();
  else if (button.dataset.why) why(...JSON.parse(button.dataset.why));
  else {
    button.disabled = true;
    button.textContent = "Cancelling…";
    const answer = await post("cancel", { key: button.dataset.cancel });
    pointed = 0;  // the list need not hold still: this is what the pointer came for
    if (!answer.cancelled) button.textContent = "Was over";
  }
}
const kept = (all, key, make) => all.map((each) => ({ key: key(each), data: each, make }));
const queryRow = (q) => ({ key: q.key, data: q, make: queryCells });
const queryCells = (q) => [queryChip(q), queryLink(q), h("span", { "data-ago": q.began_s, title: new Date(q.began_s * 1000).toString() }, ago(q.began_s)), elapsed(q),
  h("div", null, q.behind ? h("span", { class: "note" }, behind(q)) : progressBar(q) || (q.tasks ? plural(q.tasks, "task") : q.state === "done" ? "front end" : "–")), size(q.bytes), cancelButton(q) || ""];
const QUERY_HEADS = [["State"], ["Query", "sql"], ["Started", "wide"], ["Time", "n"], ["Tasks", "n"], ["Output", "n wide", "Bytes that tasks put out, for the answer and for other tasks"], ["", "n"]];

const VIEWS = {
  cluster: {
    title: "Cluster", key: "1",
    start: () => skeleton(h("div", { id: "totals" }), "nodes", "now", "tasks-now", "streaming", h("div", { class: "pair" }, h("section", { id: "rate" }), h("section", { id: "busy" })), "deaths"),
    show(d) {
      const alive = d.nodes.filter((n) => n.alive), running = d.nodes.reduce((a, n) => a + n.running, 0);
      const sum = (name) => d.nodes.reduce((a, n) => a + n[name], 0);
      draw("totals", [alive.length, d.nodes.length, d.slots, running, sum("queued"), d.counts, sum("memory_bytes"), sum("stored_bytes"), sum("disk_bytes")], () => tiles(
        tile(alive.length === d.nodes.length ? alive.length : `${alive.length} of ${d.nodes.length}`, alive.length === 1 ? "node" : "nodes alive"),
        tile(`${running} / ${d.slots}`, "slots busy"),
        tile(whole(sum("queued")), "reservations queued", "Requests for a slot that wait at nodes; tasks are bound when a slot is free"),
        tile(whole(d.counts.running), d.counts.running === 1 ? "query running" : "queries running"),
        tile(whole(d.counts.done), "queries done", `${d.counts.failed} failed, ${d.counts.cancelled} cancelled`),
        tile(size(sum("memory_bytes")), "executor memory", "Resident memory of the executors, mapped tables included"),
        tile(size(sum("stored_bytes")), "in shared memory", "Tables and outputs of tasks in the nodes' shared memory"),
        tile(size(sum("disk_bytes")), "on disk")));
      draw("nodes", d.nodes, () => [h("h2", null, "Nodes"), d.nodes.length ? table(
        [["Node"], ["State"], ["Slots busy"], ["Running", "n"], ["Queued", "n"], ["Executor memory", "n"], ["Shared memory", "n wide"], ["Disk", "n wide"], ["Executors", "wide"]],
        kept(d.nodes, (n) => `n${n.cluster}/${n.name}`, (n) => [n.cluster ? `${n.name} · ${n.cluster}` : n.name,
          n.alive ? h("span", { class: `chip ${n.draining ? "warn" : "done"}` }, n.draining ? "leaving" : "✓ alive") : h("span", { class: "chip failed" }, "✕ dead"),
          bar(Math.min(n.running, n.slots), n.slots), `${n.running} of ${n.slots}`, whole(n.queued), size(n.memory_bytes), size(n.stored_bytes), size(n.disk_bytes),
          h("details", { "data-key": `e${n.name}` }, h("summary", null, plural(n.executors.length, "executor")), n.executors.map(([name, pid, slots, memory]) => h("div", { class: "note" }, `${name}: ${plural(slots, "slot")}${pid ? `, process ${pid}` : ""}${memory ? `, ${size(memory)}` : ""}`)))]))
        : empty("No node has reported yet. A session that is open reports its nodes within a second; a history shows those of its time.")]);
      draw("deaths", d.deaths, () => d.deaths.length ? [h("h2", null, "Deaths of processes"), table([["When"], ["Node"], ["Reason", "wrap"]], d.deaths.map(([at, node, why]) => [h("span", { "data-ago": at }, ago(at)), node, why]))] : null);
      draw("now", d.running, () => [h("h2", null, "Running now"), d.running.length ? table(QUERY_HEADS, d.running.map(queryRow)) : empty("No query runs.")]);
      draw("tasks-now", d.running_tasks, (all) => all.length ? [h("h2", null, "The longest running tasks", h("span", { class: "note" }, "of those that have run for a second")), runningTable(all, true)] : null);
      if (!$("stream-chart")) $("streaming").replaceChildren(h("h2", null, "Task stream", h("span", { class: "note" }, "what each executor ran in the last minute; a colour is a query or function")), h("div", { id: "stream-chart" }), h("div", { id: "stream-legend" }));
      const now = live.now_s;
      if (d.stream.marks.length) {
        lanes("stream-chart", {
          lanes: d.stream.lanes, marks: d.stream.marks, span: d.stream.span_s, paint: (m) => colour(keyNumber(d.stream.keys[m[3]])),
          axis: (t) => clock(now - d.stream.span_s + t), label: `Tasks of the last minute on ${d.stream.lanes.length} executors`,
          say: (m) => `${d.stream.keys[m[3]]}\n${d.stream.lanes[m[0]]}, ${time(m[2] - m[1])}`,
          click: (m) => { const key = d.stream.keys[m[3]]; if (/-\d+$/.test(key)) location.hash = `#/query/${key}`; },
        });
      } else { charts.delete("stream-chart"); $("stream-chart").replaceChildren(empty("No task has ended in the last minute.")); }
      draw("stream-legend", d.stream.keys.slice(-8), (keys) => h("div", { class: "legend" }, keys.map((k) => /-\d+$/.test(k) ? h("a", { href: `#/query/${k}` }, swatch(keyNumber(k)), `query ${k}`) : h("span", null, swatch(keyNumber(k)), k))));
      plot("rate", "Tasks per second", d.seconds[0], d.seconds[1], (v) => whole(v));
      plot("busy", "Busy slots", d.seconds[0], d.seconds[2], (v) => v.toFixed(v < 10 ? 1 : 0));
    },
  },
  queries: {
    title: "Queries", key: "2",
    options: () => ({ text: filter.text, state: filter.state }),
    start: () => {
      const search = h("input", { type: "search", id: "search", placeholder: "Filter by text   ( / )", "aria-label": "Filter queries by text", value: filter.text, oninput: (e) => { filter.text = e.target.value; refilter(); } });
      const choice = h("select", { "aria-label": "State", onchange: (e) => { filter.state = e.target.value; refilter(); } },
        ["", "running", "done", "failed", "cancelled"].map((each) => h("option", { value: each, selected: each === filter.state }, each || "all states")));
      skeleton(h("div", { class: "head" }, h("h1", null, "Queries"), search, choice, h("span", { class: "note", id: "found" })), "list");
    },
    show(d) {
      const c = d.counts;
      draw("found", [c, d.more], () => `${whole(c.running)} running, ${whole(c.done)} done, ${whole(c.failed)} failed, ${whole(c.cancelled)} cancelled${d.more ? `; ${whole(d.more)} older ones match, too` : ""}`);
      // A list that moves under the pointer can't be clicked on: it waits a moment.
      if (Date.now() - pointed < 3000 && $("list").matches(":hover")) { draw("found", 0, () => "new queries wait until the pointer rests or leaves"); return; }
      draw("list", d.queries, () => d.queries.length ? table(QUERY_HEADS, d.queries.map(queryRow))
        : filter.text || filter.state ? empty("No query matches the filter.") : empty("No query has run yet. Run one in this session:", 'session.sql("SELECT 42 AS answer").show()'));
    },
  },
  query: {
    title: "Query",
    options: (key) => ({ key }),
    start: () => skeleton(h("div", { id: "title" }), h("div", { id: "numbers" }), h("div", { id: "problems" }), "sqltext", "plan", "tasks-now", "graph", "stages", "line", "longest", "failures", "spread"),
    show(q) {
      if (!q) { draw("title", null, () => [h("h1", null, "This query is not known"), empty("It is too old, or of a session that this page does not show."), h("a", { href: "#/queries" }, "All queries")]); return; }
      document.title = `${q.state} · ${q.kind} ${q.number} · minishark`;
      described = q.figures;
      draw("title", [q.key, q.state, q.began_s, q.behind], () => h("div", { class: "head" }, h("h1", null, q.kind === "load" ? q.sql : `Query ${q.number}`), queryChip(q), h("span", { class: "dim" }, q.session && `session ${q.session}, `, "started ", h("span", { "data-ago": q.began_s }, ago(q.began_s))), h("span", { class: "grow" }), cancelButton(q, `Cancel the ${q.kind}`),
        !exported && h("a", { href: `export?${new URLSearchParams({ key: q.key })}`, download: true, title: "This page as one file, for others" }, "Save as a file")));
      const shuffled = q.stage_list.length ? q.bytes - (q.stage_list[q.stage_list.length - 1].bytes || 0) : 0;
      const last = q.stage_list[q.stage_list.length - 1];
      draw("numbers", [q.stage_list, q.elapsed_s, q.planning_s, q.done, q.tasks, q.bytes, q.state, q.table_bytes], () => tiles(
        tile(elapsed(q), "in all"), tile(time(q.planning_s), "of it planning"),
        tile(q.tasks ? `${count(q.done)} / ${count(q.tasks)}` : "0", `tasks in ${plural(q.stages, "stage")}`),
        tile(last && last.state === "done" ? count(last.rows) : "–", q.kind === "load" ? "rows stored" : "rows in the answer"),
        tile(size(q.table_bytes), "tables read", "The size of one replica of the tables that it scans, all columns"),
        tile(size(shuffled), "between stages", "What tasks put out for other tasks"), ...figureTiles(q.stage_list)));
      draw("problems", [q.error, q.warnings, q.in_front_end, q.is_reduced, q.revisions, q.state, q.behind], () => [
        q.behind && h("p", { class: "banner" }, `It waits for slots ${behind(q)}: all are busy.`),
        q.error && h("p", { class: "banner bad" }, q.error), q.warnings.map((w) => h("p", { class: "banner" }, w)),
        q.in_front_end && q.state === "done" && !q.warnings.length && h("p", { class: "banner" }, "It ran in the front end, without tasks."),
        q.is_reduced && h("p", { class: "banner" }, "It is so old that its plan and tasks are not kept any more."),
        q.revisions.length > 0 && h("section", null, h("h2", null, "Changed while it ran"), table([["Rule"], ["Why", "wrap"]], q.revisions))]);
      draw("sqltext", q.sql, () => q.sql && q.kind !== "load" ? [h("h2", null, "SQL"), h("pre", { tabindex: 0 }, q.sql)] : null);
      draw("plan", q.plan, () => q.plan.length ? [h("h2", null, "Plan", h("span", { class: "note" }, "rows as estimated, and as counted")), planTree(q.plan)] : null);
      draw("tasks-now", [q.running_tasks, q.state], () => q.running_tasks.length ? [h("h2", null, q.state === "running" ? "The longest running tasks" : "Tasks that ran when it was last heard of", h("span", { class: "note" }, "of those that have run for a second")),
        runningTable(q.running_tasks, false, q.state === "running" ? null : q.began_s + q.elapsed_s)] : null);
      draw("graph", q.stage_list.map((t) => [t.index, t.reads, t.does, t.tables, t.done, t.tasks, t.state, t.rows, t.bytes, t.skew]), () => q.stage_list.length ? [h("h2", null, "Stages"), h("div", { class: "scroll" }, stageGraph(q.stage_list))] : null);
      draw("stages", q.stage_list, () => q.stage_list.length ? [h("h2", null, "Figures by stage", h("span", { class: "note" }, "as EXPLAIN ANALYZE prints them")), stageTable(q.stage_list)] : null);
      const line = q.timeline;
      if (line.marks.length) {
        if (!$("line-chart")) $("line").replaceChildren(h("h2", null, "Tasks by executor", h("span", { class: "note" }, "drag to zoom, double click to see all, click on a task to learn why it ran there")), h("div", { id: "line-chart" }), h("div", { id: "line-legend" }));
        lanes("line-chart", {
          lanes: line.lanes, marks: line.marks, span: line.span_s, paint: (m) => colour(m[3]), label: `Tasks on ${line.lanes.length} executors`,
          say: (m) => m[4] > 1 ? `${m[4]} tasks of stage ${m[3]} on ${line.lanes[m[0]]}\n${time(m[2] - m[1])}` : `stage ${m[3]}, task ${m[5]} on ${line.lanes[m[0]]}\n${time(m[2] - m[1])}`,
          click: (m) => why(q.key, m[3], m[5]),
        });
        draw("line-legend", [...new Set(line.marks.map((m) => m[3]))], (all) => h("div", { class: "legend" }, all.map(stageChip)));
      } else if (!$("line-chart")) $("line").replaceChildren();
      draw("longest", q.longest, () => q.longest.length ? [h("h2", null, "The longest tasks"), taskTable(q.key, q.longest)] : null);
      draw("failures", q.failed, () => q.failed.length ? [h("h2", null, "Failed tasks"), table([["Stage", "n"], ["Task", "n"], ["Executor"], ["Message", "wrap"]], q.failed)] : null);
      const busiest = [...q.by_node].sort((a, b) => b.busy_s - a.busy_s).slice(0, 20);
      draw("spread", busiest, () => busiest.length ? [h("h2", null, "By node", q.by_node.length > 20 && h("span", { class: "note" }, `the 20 busiest of ${q.by_node.length}`)), nodeTable(busiest)] : null);
    },
  },
  tables: {
    title: "Tables", key: "3",
    start: () => skeleton("list"),
    show(d) {
      draw("list", d, () => d.tables.length ? [h("h2", null, "Tables and their partitions", h("span", { class: "note" }, "a column is a partition, a line a node that stores it")), d.tables.map((t) => tableMap(t, d.nodes))]
        : empty("There is no table. Load one, and see which node holds what:", 'session.create_table("events", "events/*.parquet", partition_by="user")'));
    },
  },
  placement: {
    title: "Placement", key: "4",
    start: () => skeleton(h("div", { id: "totals" }), "late", "nodes", "jobs"),
    show(d) {
      const b = d.binding;
      if (!d.tasks) { draw("nodes", 0, () => empty("No task has been placed yet. Run a query; its tasks' way to their nodes is shown here.")); }
      draw("totals", [d.tasks, d.all, d.local, d.constrained, b], () => d.tasks ? tiles(
        tile(count(d.tasks), "newest tasks"), tile(time(d.all.median), "median queue time", "From a task's submission to its start, messages included"), tile(time(d.all.p95), "95th percentile"),
        tile(share(d.local, d.constrained), "ran where their data is", `${whole(d.local)} of ${whole(d.constrained)} tasks that read tables`),
        b && tile((b.reservations / b.tasks).toFixed(2), "reservations per task"), b && b.probes ? tile(whole(b.probes), "probes of load") : null) : null);
      draw("late", b, () => b ? [h("h2", null, "Late binding"), lateBars(b)] : null);
      if (d.tasks) draw("nodes", d.nodes, () => {
        const most = Math.max(...d.nodes.map((n) => n.queue_s.p95), 1e-9);
        return [h("h2", null, "Queue times by node", h("span", { class: "note" }, "quartiles as a box, the median as a line, up to the 95th percentile")), table([["Node"], ["Tasks", "n"], [`0 to ${time(most)}`], ["Median", "n"], ["95 %", "n"], ["Longest", "n"]],
          d.nodes.map((n) => [n.name, count(n.tasks), boxPlot(n.queue_s, most), time(n.queue_s.median), time(n.queue_s.p95), time(n.queue_s.max)]))];
      });
      draw("jobs", d.jobs, () => d.jobs.length ? [h("h2", null, "The newest jobs"), table([["Query"], ["Stage"], ["Tasks", "n"], ["Reservations", "n"], ["Mean wait", "n"], ["Bound at random", "n", "At least this long, had each task gone to one of its reservations at random"], ["Reserved → ran, by node", "wrap"]],
        d.jobs.map((j) => [h("a", { href: `#/query/${j.key}` }, j.key), stageChip(j.stage), whole(j.tasks), whole(j.reservations), time(j.late_s), `≥ ${time(j.random_s)}`,
          h("span", { class: "note" }, j.nodes.slice(0, 6).map(([n, , r, t]) => `${n} ${r}→${t}`).join("   "), j.nodes.length > 6 ? `   and ${j.nodes.length - 6} more` : "")]))] : null);
    },
  },
  python: {
    title: "Python", key: "5",
    start: () => skeleton("functions", "tasks-now", "programs", "jobs"),
    show(d) {
      draw("functions", d.functions, () => [h("h2", null, "Calls of functions"), d.functions.length ? table([["Function", "wrap"], ["Progress"], ["Sent", "n"], ["Done", "n"], ["Raised", "n"], ["Lost", "n"], ["Mean time", "n"], ["Longest", "n"], ["Nodes", "wide"]],
        d.functions.map((f) => [h("div", null, h("code", null, f.name), f.error && h("div", { class: "note" }, f.error.split("\n")[0])), bar(f.done + f.raised + f.lost, f.submitted), count(f.submitted), count(f.done), f.raised ? h("span", { class: "chip failed" }, count(f.raised)) : "0", f.lost ? h("span", { class: "chip failed" }, count(f.lost)) : "0", time(f.mean_s), time(f.longest_s),
          h("span", { class: "note" }, f.nodes.slice(0, 6).map(([n, c]) => `${n}: ${count(c)}`).join("   "))]))
        : empty("No function has been called. Call one for many items:", "list(session.map(pow, range(100), [2] * 100))")]);
      draw("tasks-now", d.running_tasks, (all) => all.length ? [h("h2", null, "The longest running calls and workers"), runningTable(all, true)] : null);
      draw("programs", d.programs, () => [h("h2", null, "Iterative programs"), d.programs.length ? table([["Program", "wrap"], ["State"], ["Iterations", "n"], ["Stages", "n"], ["Tasks", "n"], ["Workers", "n"], ["Snapshot", "n", "The stage of the last complete snapshot"], ["Moved", "n", "Partitions that have moved to other workers"], ["Rollbacks", "n"], ["Time", "n"]],
        d.programs.map((p) => [h("div", null, h("code", null, p.name), p.error && h("div", { class: "note" }, p.error)), stateChip(p.state), count(p.iterations), count(p.stage), count(p.tasks), whole(p.workers), p.snapshot == null ? "–" : whole(p.snapshot), whole(p.migrations), whole(p.rollbacks), time(p.elapsed_s)]))
        : empty("No program has run. docs/canary.md has some to start with.")]);
      draw("jobs", d.jobs, (all) => all.length ? [h("h2", null, "Jobs that outlive their programs"), table([["Job", "wrap"], ["State"], ["User"], ["Node"], ["Starts", "n"], ["Took", "n", "From its submission to its end, or until now"], ["What has happened", "wide"]],
        all.map((j) => [h("div", null, h("code", null, j.name), h("div", { class: "note" }, j.what)), stateChip(j.state), j.user, j.node, whole(j.starts), time(j.took_s),
          h("details", { "data-key": `j${j.name}` }, h("summary", null, j.why.split("\n").at(-1)), h("pre", null, j.why), j.log && h("pre", null, j.log))]))] : null);
    },
  },
};

function keyNumber(key) {
  const found = /-(\d+)$/.exec(key);
  if (found) return Number(found[1]);
  let sum = 0;
  for (const char of key) sum = (sum * 31 + char.charCodeAt(0)) >>> 0;
  return sum;
}

function planTree(plan) {
  const children = plan.map(() => []);
  plan.forEach((n, i) => { if (n[0] != null) children[n[0]].push(i); });
  const rows = [];
  const times = plan.map((n) => n[8]), all = times.reduce((sum, t) => sum + (t || 0), 0), timed = times.some((t) => t != null);
  const ratio = (n) => (n[5] == null || n[9] ? null : Math.max(n[5], 1) / Math.max(n[4], 1));
  const factor = (n) => { const off = ratio(n); return off == null ? 1 : Math.max(off, 1 / off); };
  const worst = plan.reduce((found, n, i) => (factor(n) >= 2 && (found < 0 || factor(n) >= factor(plan[found])) ? i : found), -1);
  const walk = (i, own, below) => {
    const [, name, label, where, estimated, real, stage, putsOut, cpu, early] = plan[i];
    const off = ratio(plan[i]);
    const far = off != null && (i === worst || off >= 10 || off <= 0.1);
    const rest = label.startsWith(name) ? label.slice(name.length) : ` ${label}`;
    rows.push([h("div", null, h("span", { class: "twig" }, own), h("span", { class: "name" }, name), h("span", { title: `${name}${rest}\n${where}` }, rest.length > 160 ? `${rest.slice(0, 160)}…` : rest)),
      stageChip(stage), h("span", { title: exact(estimated, "rows, estimated") }, `~${count(estimated)}`),
      real == null ? h("span", { class: "dim", title: putsOut ? "Its stage is not complete" : timed ? "Not known: DuckDB ran it as part of others" : "Inside a stage: EXPLAIN ANALYZE and profile() count rows there" }, "–") : h("b", { title: exact(real, early ? "rows, when nobody needed more" : "rows") }, `${count(real)}${early ? " so far" : ""}`),
      ...(timed ? [cpu == null ? h("span", { class: "dim" }, "–") : h("span", { title: `${all ? Math.round(100 * cpu / all) : 0} % of the CPU time of all operators` }, time(cpu))] : []),
      off == null ? "" : h("span", { class: far ? "chip warn" : "note", title: i === worst ? "The largest misestimate" : null }, `${i === worst ? "largest: " : ""}${off >= 1 ? `× ${off >= 100 ? count(off) : off.toFixed(1)}` : `÷ ${1 / off >= 100 ? count(1 / off) : (1 / off).toFixed(1)}`}`)]);
    children[i].forEach((c, k) => walk(c, `${below}${k === children[i].length - 1 ? "└─ " : "├─ "}`, `${below}${k === children[i].length - 1 ? "   " : "│  "}`));
  };
  if (plan.length) walk(0, "", "");
  return table([["Operator"], ["Stage"], ["Estimated rows", "n"], ["Real rows", "n"], ...(timed ? [["CPU time", "n"]] : []), ["Real to estimated", "n"]], rows, { class: "tree" });
}

const STAGE_STATES = { running: "no task has ended yet", waiting: "waiting for slots", stopped: "stopped", "not started": "not started" };
function stageGraph(stages) {
  const known = new Map(stages.map((t) => [t.index, t])), level = new Map();
  const depth = (i) => { if (!level.has(i)) { level.set(i, 0); const t = known.get(i); level.set(i, 1 + Math.max(-1, ...t.reads.filter((r) => known.has(r)).map(depth))); } return level.get(i); };
  stages.forEach((t) => depth(t.index));
  const columns = [];
  stages.forEach((t) => (columns[level.get(t.index)] ||= []).push(t.index));
  const W = 210, H = 74, GX = 46, GY = 16, place = new Map();
  const tallest = Math.max(...columns.map((c) => c.length));
  columns.forEach((c, x) => c.forEach((i, y) => place.set(i, [4 + x * (W + GX), 4 + (y + (tallest - c.length) / 2) * (H + GY)])));
  const width = columns.length * (W + GX), height = tallest * (H + GY) + 4;
  const short = (text, n) => text.length > n ? `${text.slice(0, n - 1)}…` : text;
  return s("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${stages.length} stages and what they read` },
    stages.flatMap((t) => t.reads.filter((r) => place.has(r)).map((r) => {
      const [x0, y0] = place.get(r), [x1, y1] = place.get(t.index), a = x0 + W, b = y0 + H / 2, c = x1 - 5, e = y1 + H / 2, m = Math.max(18, (c - a) / 2);
      return [s("path", { d: `M${a} ${b}C${a + m} ${b} ${c - m} ${e} ${c} ${e}` }), s("path", { class: "arrow", d: `M${c - 1} ${e - 4}l6 4l-6 4z` })];
    })),
    stages.map((t) => {
      const [x, y] = place.get(t.index), done = t.tasks ? Math.min(1, t.done / t.tasks) : 0, skewed = t.skew >= 3 && t.tasks > 2;
      return s("g", { class: `${t.is_open ? "open" : t.state === "done" ? "full" : t.state === "failed" ? "failed" : ""}${skewed ? " skewed" : ""}` }, s("title", null, `${t.does}${t.tables.length ? `\nreads ${t.tables.join(", ")}` : ""}`),
        s("rect", { class: "box", x, y, width: W, height: H, rx: 6 }), s("rect", { x: x + 10, y: y + 11, width: 9, height: 9, rx: 2, fill: colour(t.index) }),
        s("text", { x: x + 25, y: y + 20 }, `Stage ${t.index}`), s("text", { class: "dim", x: x + W - 10, y: y + 20, "text-anchor": "end" }, `${count(t.done)} / ${count(t.tasks)}`),
        s("rect", { class: "track", x: x + 10, y: y + 27, width: W - 20, height: 5, rx: 2.5 }), s("rect", { class: "fill", x: x + 10, y: y + 27, width: (W - 20) * done, height: 5, rx: 2.5 }),
        s("text", { class: "dim", x: x + 10, y: y + 48 }, short(t.tables.length ? `${t.tables.join(", ")}: ${t.does}` : t.does, 33)),
        s("text", { class: "dim", x: x + 10, y: y + 64 }, t.state === "failed" ? "failed" : t.done ? `${count(t.rows)} rows, ${size(t.bytes)}` : STAGE_STATES[t.state]),
        skewed ? s("text", { class: "warn", x: x + W - 10, y: y + 64, "text-anchor": "end" }, `skew ${t.skew.toFixed(1)}`) : null);
    }));
}

function spark(values) {
  const most = Math.max(...values, 1), w = Math.max(1, Math.min(6, Math.floor(120 / values.length))), mid = [...values].sort((a, b) => a - b)[values.length >> 1];
  return s("svg", { class: "spark", width: Math.min(200, w * values.length), height: 18, role: "img", "aria-label": "rows by task" }, values.map((v, i) => {
    const tall = Math.max(v ? 1 : 0, 18 * v / most);
    return s("rect", { class: v > 3 * Math.max(1, mid) ? "top" : "", x: i * w, y: 18 - tall, width: Math.max(.8, w - (w > 2 ? 1 : 0)), height: tall });
  }));
}
const three = (v, say) => h("span", { title: `minimum, median, maximum; 25 %: ${say(v.p25)}, 75 %: ${say(v.p75)}, 95 %: ${say(v.p95)}` }, `${say(v.min)} / ${say(v.median)} / ${say(v.max)}`);
/* Figures of tasks, as the server describes them and in its order. Those that are rarely anything but
   0 are shown only then; parts of others stand below those. */
const UNITS = { count, bytes: size, seconds: time };
const called = (f, ofMany) => { const text = (ofMany && f.of_many) || f.label; return text[0].toUpperCase() + text.slice(1); };
const largest = (v) => v == null ? 0 : v.max ?? v;
const isUnusual = (f, rows) => (f.is_rare || f.part_of) && rows.some((row) => largest(row[f.name]));
const figuresOf = (rows) => described.filter((f) => !f.part_of && (!f.is_rare || isUnusual(f, rows)));
/* A figure of one task or of many: a number, the shares or the spread of many. */
function figure(f, row) {
  const v = row[f.name], say = UNITS[f.unit], keys = row.by_key && row.by_key[f.name];
  if (v == null || row.done === 0) return "–";
  if (typeof v === "boolean") return v ? "yes" : h("span", { class: "chip warn" }, "no");
  if (Array.isArray(v)) return v[1] ? `${v[0]}/${v[1]}` : "–";
  if (typeof v === "object") return three(v, say);
  const title = keys ? Object.entries(keys).map(([key, n]) => `${key}: ${say(n)}`).join("\n") : f.unit === "seconds" ? `${v} s` : exact(v, f.unit === "bytes" ? "bytes" : f.label);
  return h("span", { title }, say(v), described.filter((part) => part.part_of === f.name && row[part.name]).map((part) => h("div", { class: "note", title: part.says }, `${UNITS[part.unit](row[part.name])} ${part.label}`)));
}
/* The columns of a table of tasks, stages or nodes; what is derived for stages stands beside the figure
   that it is derived from. */
const BESIDE = {
  rows: [[["Rows by task"], ["Skew", "n", "Rows of the largest task over the median"]],
    (t) => [t.rows_by_task.length > 1 ? spark(t.rows_by_task) : "", t.skew == null ? "–" : t.skew >= 3 ? h("span", { class: "chip warn" }, t.skew.toFixed(1)) : t.skew.toFixed(1)]],
  bytes: [[["Time", "n"]], (t) => [t.elapsed_s ? time(t.elapsed_s) : "–"]],
};
const ofMany = (f) => [called(f, true) + (f.sums === "spread" ? ": least / median / most" : ""), "n", f.says];
const ofOne = (f) => [called(f, false), f.sums === "share" || f.sums === "beyond first" ? "n wide" : "n", f.says];
const figureTiles = (rows) => described.filter((f) => isUnusual(f, rows)).map((f) => tile(UNITS[f.unit](rows.reduce((sum, row) => sum + largest(row[f.name]), 0)), f.label, f.says));
function stageTable(stages) {
  const figures = figuresOf(stages);
  return table([["Stage"], ["Tasks", "n"], ...figures.flatMap((f) => [ofMany(f), ...(BESIDE[f.name] || [[]])[0]])],
    stages.map((t) => [h("details", { "data-key": `s${t.index}` }, h("summary", null, stageChip(t.index)), h("div", { class: "note" }, t.does), t.sql && h("pre", null, t.sql)),
      h("span", null, t.done === t.tasks ? whole(t.tasks) : `${count(t.done)} of ${count(t.tasks)}`, t.again ? h("div", { class: "note" }, `${t.again} again`) : null, t.beyond ? h("div", { class: "note", title: "Percentiles are of the first tasks" }, `details of ${whole(t.done - t.beyond)}`) : null),
      ...figures.flatMap((f) => [figure(f, t), ...(BESIDE[f.name] ? BESIDE[f.name][1](t) : [])])]));
}
function nodeTable(nodes) {
  const figures = figuresOf(nodes);
  return table([["Node"], ["Tasks", "n"], ["Run time", "n"], ...figures.map(ofMany)], kept(nodes, (n) => `b${n.node}`, (n) => [n.node, whole(n.tasks), time(n.busy_s), ...figures.map((f) => figure(f, n))]));
}
function taskTable(key, tasks) {
  const figures = figuresOf(tasks);
  return table([["Stage"], ["Task", "n"], ["Executor"], ...figures.map(ofOne), ["", "n"]], kept(tasks, (t) => `l${t.stage}.${t.task}`, (t) => [stageChip(t.stage), whole(t.task), t.executor, ...figures.map((f) => figure(f, t)),
    h("button", { class: "link", "data-why": JSON.stringify([key, t.stage, t.task]) }, "Why there?")]));
}
/* Tasks that run, those first that run the longest; until `ended_s`, if nothing is heard since. */
const runningTable = (tasks, isCluster, ended_s = null) => table([...(isCluster ? [["What", "sql"]] : []), ["Stage"], ["Task", "n"], ["Executor"], ["Running for", "n"], ["Attempt", "n wide"]],
  kept(tasks, (t) => `r${t.key}.${t.what}.${t.stage}.${t.task}.${t.executor}`, (t) => [
    ...(isCluster ? [t.key ? h("a", { href: `#/query/${t.key}`, title: t.what }, t.what.replace(/\s+/g, " ") || `query ${t.key}`) : h("code", null, t.what)] : []),
    t.key ? stageChip(t.stage) : "–", t.key ? whole(t.task) : "–", t.executor,
    h("b", ended_s == null ? { "data-since": t.began_s } : null, time(Math.max(0, (ended_s ?? serverNow()) - t.began_s))), t.attempt]));

function boxPlot(v, most) {
  const x = (t) => `${Math.min(100, 100 * t / most)}%`;
  return s("svg", { class: "box-plot", role: "img", "aria-label": `median ${time(v.median)}` }, s("line", { x1: x(v.min), x2: x(v.p95), y1: 8, y2: 8 }),
    s("rect", { x: x(v.p25), y: 2, width: `${Math.max(.4, 100 * (Math.min(v.p75, most) - v.p25) / most)}%`, height: 12, rx: 2 }), s("line", { class: "mid", x1: x(v.median), x2: x(v.median), y1: 1, y2: 15 }));
}
function lateBars(b) {
  const most = Math.max(b.late_s, b.random_s, 1e-9);
  const one = (label, value, text, kind) => [label, h("div", { class: "bar" }, h("i", { class: kind, style: { "flex-basis": `${100 * value / most}%` } })), text];
  return [table([["How a task gets its node"], ["Mean wait for a slot"], ["", "n"]], [
    one("late binding: the node that asks first", b.late_s, time(b.late_s), ""), one("at random: one of the nodes with a reservation", b.random_s, `at least ${time(b.random_s)}`, "other")]),
    h("p", { class: "note" }, `From ${plural(b.tasks, "task")} of ${plural(b.jobs, "job")} whose placement is known. Had tasks been bound to one of their reservations at random, each would have waited until that node asked; nodes that never had to ask count with the time of the last that did.`)];
}

function tableMap(t, nodes) {
  const all = [...new Set([...nodes, ...t.partitions.flatMap((p) => p[2])])], n = t.partitions.length;
  const row = new Map(all.map((name, i) => [name, i])), lane = Math.max(3, Math.min(16, Math.floor(260 / Math.max(1, all.length))));
  const canvas = h("canvas", { class: "map", role: "img", "aria-label": `${plural(n, "partition")} of ${t.name} on ${plural(all.length, "node")}` });
  const named = lane >= 11, left = named ? 110 : 8;
  const paintMap = () => {
    const wide = canvas.clientWidth, ratio = devicePixelRatio || 1, tall = all.length * lane;
    if (!wide) return;
    canvas.width = wide * ratio; canvas.height = tall * ratio; canvas.style.height = `${tall}px`;
    const g = canvas.getContext("2d"), cell = Math.min(28, (wide - left) / Math.max(1, n)), most = Math.max(...t.partitions.map((p) => p[1]), 1);
    g.scale(ratio, ratio); g.font = "11px system-ui, sans-serif"; g.textBaseline = "middle";
    g.fillStyle = css("--soft"); for (let i = 0; i < all.length; i++) g.fillRect(left, i * lane, cell * n, lane - 1);
    g.fillStyle = css("--dim"); if (named) all.forEach((name, i) => g.fillText(name, 0, (i + .5) * lane, left - 6));
    g.fillStyle = css("--mark");
    t.partitions.forEach((p, i) => { g.globalAlpha = .35 + .65 * p[1] / most; p[2].forEach((name) => g.fillRect(left + i * cell, row.get(name) * lane, Math.max(.7, cell - (cell > 3 ? 1 : 0)), lane - 1)); });
    g.globalAlpha = 1;
    state.cell = cell;
  };
  const state = { cell: 1 };
  canvas.addEventListener("pointermove", (event) => {
    const i = Math.floor((event.offsetX - left) / state.cell), p = t.partitions[i];
    tip(event, p ? `partition ${i}: ${count(p[0])} rows, ${size(p[1])}\non ${p[2].join(", ") || "no node"}` : "");
  });
  canvas.addEventListener("pointerleave", (event) => tip(event, ""));
  new ResizeObserver(paintMap).observe(canvas);
  const short = t.fewest < Math.min(t.replicas, nodes.length || t.replicas);
  return [h("h3", null, t.name, " ", t.session && h("span", { class: "note" }, `session ${t.session}`), t.is_cached && h("span", { class: "chip" }, "cached rows"), !t.is_computed && h("span", { class: "chip warn" }, "computed when first needed")),
    t.is_computed && h("p", { class: "note" }, `${plural(t.rows, "row")}, ${size(t.bytes)} per replica, ${plural(n, "partition")}${t.keys.length ? ` by hash of ${t.keys.join(", ")}` : ""}; `,
      h("span", { class: short ? "chip warn" : "" }, `${t.fewest} of ${t.replicas} replicas kept${t.healing ? `, ${plural(t.healing, "partition")} being copied` : ""}`)),
    t.is_computed && canvas,
    t.columns.length > 0 && h("details", { "data-key": `t${t.session}${t.name}` }, h("summary", null, plural(t.columns.length, "column")), h("div", { class: "mono" }, t.columns.map(([name, type]) => `${name} ${type}`).join(", ")))];
}

const plots = new Map();
function plot(id, title, times, values, say) {
  const target = $(id);
  if (!times.length || typeof uPlot === "undefined") { draw(id, 0, () => [h("h2", null, title), empty("Nothing has run yet.")]); return; }
  let chart = plots.get(id);
  if (!chart || !target.contains(chart.root)) {
    drawn.delete(id);
    const holder = h("div");
    target.replaceChildren(h("h2", null, title, h("span", { class: "note" }, "the last five minutes")), holder);
    const axis = { stroke: () => css("--dim"), grid: { stroke: () => css("--soft"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    chart = new uPlot({ width: Math.max(200, holder.clientWidth), height: 130, legend: { show: false }, cursor: { y: false, drag: { x: false } }, padding: [8, 8, 0, 0],
      scales: { x: { time: true }, y: { range: (u, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [{ ...axis, values: (u, all) => all.map((t) => clock(t)), space: 90, size: 26 }, { ...axis, size: 44, values: (u, all) => all.map((v) => say(v)) }],
      series: [{}, { stroke: () => css("--mark"), fill: "rgba(0,114,178,.18)", width: 1.5, points: { show: false } }] }, [times, values], holder);
    plots.set(id, chart);
    new ResizeObserver(() => { if (holder.clientWidth) chart.setSize({ width: holder.clientWidth, height: 130 }); }).observe(holder);
  } else chart.setData([times, values]);
}

/* ---- dialogs ---- */

function dialog(title, ...content) {
  const box = $("dialog");
  box.replaceChildren(h("div", { class: "head" }, h("h2", { id: "dialog-title" }, title), h("span", { class: "grow" }), h("button", { "data-close": true }, "Close")), ...content.flat().filter(Boolean));
  if (!box.open) box.showModal();
}
async function why(key, stage, task) {
  const found = exported ? exported.why[`${stage}.${task}`] : await get(`why?${new URLSearchParams({ key, stage, task })}`);
  if (!found) { dialog("Why there?", empty("This task is not known any more.")); return; }
  const b = found.binding;
  dialog(`Stage ${stage}, task ${task}`,
    tiles(tile(found.executor, "ran it"), ...figuresOf([found]).map((f) => tile(figure(f, found), f.label, f.says))),
    h("h3", null, "Why it ran there"),
    found.why.length ? h("pre", null, found.why.map((line) => line.trim()).join("\n")) : empty("The scheduler was not asked to explain this job. Placements are explained while a page is open, and for df.profile()."),
    b && b.nodes.length ? [h("h3", null, "The nodes of its job"), table([["Node"], ["Probed for load", "n"], ["Reservations", "n"], ["Tasks that ran", "n"]], b.nodes.slice(0, 60).map(([n, p, r, t]) => [n, p || "–", whole(r), whole(t)]))] : null);
}
const help = () => dialog("Keys", table([["Key"], ["What it does", "wrap"]], [...Object.values(VIEWS).filter((v) => v.key).map((v) => [h("kbd", null, v.key), v.title]), [h("kbd", null, "/"), "filter queries"], [h("kbd", null, "Esc"), "close, or show all of a timeline"], [h("kbd", null, "?"), "this help"]]));

/* ---- routes, and the connection ---- */

const exported = $("export") ? JSON.parse($("export").textContent) : null;
const filter = { text: "", state: "" };
let described = [];  // the figures of tasks
const live = { now_s: 0, skew: 0, can_cancel: false, source: null, name: "" };
const serverNow = () => Date.now() / 1000 + live.skew;

async function get(path) { const answer = await fetch(path); return answer.ok ? answer.json() : null; }
async function post(path, body) {
  const token = location.pathname.split("/")[1];
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", "X-Minishark-Token": token }, body: JSON.stringify(body) });
  return answer.ok ? answer.json() : {};
}
function route() {
  const [name = "", key = ""] = location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  return VIEWS[name] ? [name, key] : ["cluster", ""];
}
function nav(counts) {
  const [name] = route();
  draw("nav", [name, counts && counts.running], () => Object.entries(VIEWS).filter(([, v]) => v.key).map(([id, v]) =>
    h("a", { href: `#/${id}`, "aria-current": id === name || (id === "queries" && name === "query") ? "page" : null, title: `key ${v.key}` }, v.title, id === "queries" && counts && counts.running ? h("span", { class: "count" }, ` ${counts.running} running`) : null)));
}
function status(kind, text) { draw("status", [kind, text], () => [h("i", { class: `dot ${kind}` }), text]); }

function connect() {
  if (live.source) live.source.close();
  const [name, key] = route(), view = VIEWS[name];
  if (document.hidden) { live.source = null; return; }
  const options = new URLSearchParams({ view: name, ...(view.options ? view.options(key) : {}) });
  const source = live.source = new EventSource(`events?${options}`);
  source.onmessage = (message) => {
    if (source !== live.source) return;
    waiting = message.data;
    if (!drawing) drawing = setTimeout(drawWaiting, Math.max(0, rested - performance.now()));
  };
  source.onerror = () => {
    if (source !== live.source) return;
    status("away", "Connecting again… if the session has ended, this is its last state");
    // A refused connection is not tried again by the browser itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (source === live.source) connect(); }, 2000);
  };
}
/* Drawing takes at most a quarter of the time, however much there is to draw: of messages that come
   faster, the newest counts. */
let waiting = null, drawing = 0, rested = 0;
function drawWaiting() {
  const began = performance.now(), found = JSON.parse(waiting);
  drawing = 0;
  if (found.view === route()[0]) receive(found);
  rested = performance.now() + 3 * (performance.now() - began);
}
function receive(found) {
  Object.assign(live, { now_s: found.now_s, skew: found.clock_s - Date.now() / 1000, can_cancel: found.can_cancel });
  const sessions = found.about.sessions, alive = sessions.filter((each) => each.is_live);
  const dropped = sessions.reduce((a, each) => a + each.dropped, 0);
  nav(found.about.counts);
  status(found.can_cancel ? "live" : "", `${found.can_cancel ? (alive.length === 1 ? `live · session ${alive[0].session}` : `live · ${plural(alive.length, "session")}`) : `history · ${plural(sessions.length, "session")}`}${dropped ? ` · ${plural(dropped, "event")} missed` : ""}`);
  VIEWS[found.view].show(found.data);
}
let pointed = 0;
let refiltering = 0;
function refilter() { clearTimeout(refiltering); refiltering = setTimeout(connect, 200); }
let shown = null;
function go() {
  const [name] = route();
  shown = location.hash;
  document.title = `${VIEWS[name].title} · minishark`;
  tip({}, "");
  VIEWS[name].start();
  nav();
  if (!exported) connect();
}

function begin() {
  addEventListener("click", press);
  addEventListener("pointermove", () => { pointed = Date.now(); }, { passive: true });
  if (exported) {
    document.body.classList.add("exported");
    $("nav").replaceChildren();
    VIEWS.query.start();
    Object.assign(live, { now_s: exported.now_s });
    status("", `exported ${new Date(exported.now_s * 1000).toLocaleString()} · minishark ${exported.version}`);
    VIEWS.query.show(exported.query);
    return;
  }
  status("", "Connecting…");
  addEventListener("hashchange", () => { if (location.hash === shown) return; go(); $("main").focus({ preventScroll: true }); scrollTo(0, 0); });
  document.addEventListener("visibilitychange", () => { if (document.hidden) { if (live.source) live.source.close(); live.source = null; } else connect(); });
  addEventListener("online", connect);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { plots.forEach((p) => p.redraw()); charts.forEach(paint); });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) { if (event.key === "Escape") event.target.blur(); return; }
    const found = Object.entries(VIEWS).find(([, v]) => v.key === event.key);
    if (found) location.hash = `#/${found[0]}`;
    else if (event.key === "/") { event.preventDefault(); if (route()[0] !== "queries") { history.pushState(null, "", "#/queries"); go(); } $("search").focus(); }
    else if (event.key === "?") help();
  });
  // A laptop that slept: the browser may not notice that the connection is gone.
  setInterval(() => {
    for (const each of document.querySelectorAll("[data-since]")) each.textContent = time(Math.max(0, serverNow() - Number(each.dataset.since)));
    for (const each of document.querySelectorAll("[data-ago]")) each.textContent = ago(Number(each.dataset.ago));
  }, 500);
  let last = Date.now();
  setInterval(() => { if (Date.now() - last > 15000) connect(); last = Date.now(); }, 3000);
  go();
}
begin();
