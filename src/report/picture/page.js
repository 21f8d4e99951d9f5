"use strict";
// The data: texts and source lines are stored once, buffers and ops column by column.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const COLORS = {
  params: "#4c78a8", state: "#79a5c9", grads: "#e45756", activations: "#54a24b", recompute: "#b8a11b",
  temporaries: "#f58518", comm: "#b279a2", inputs: "#72b7b2", outputs: "#9d755d",
};
const colorOf = data.kinds.map((kind) => COLORS[kind] || "#888888");
// What stays long lies below what comes and goes.
const STACK = ["params", "state", "inputs", "outputs", "activations", "comm", "grads", "recompute", "temporaries"]
  .map((kind) => data.kinds.indexOf(kind));

function bytes(n) {
  if (n < 1024) return `${n} B`;
  for (const [unit, size, end] of [["KiB", 2 ** 10, 2 ** 20], ["MiB", 2 ** 20, 100 * 2 ** 30], ["GiB", 2 ** 30, Infinity]]) {
    if (n < end) return `${(n / size).toFixed(1)} ${unit}`;
  }
}

/** The columns of an order, with what drawing needs beside them. */
class Order {
  constructor(raw) {
    Object.assign(this, raw);
    const b = this.buffers;
    this.count = b.name.length;
    this.length = Math.max(1, this.ops.name.length);
    // Bytes of each kind at each position, then their sum.
    this.byKind = data.kinds.map(() => new Float64Array(this.length + 1));
    for (let i = 0; i < this.count; i++) {
      this.byKind[b.kind[i]][b.from[i]] += b.bytes[i];
      this.byKind[b.kind[i]][b.to[i] + 1] -= b.bytes[i];
    }
    this.total = new Float64Array(this.length);
    for (const curve of this.byKind) {
      let sum = 0;
      for (let t = 0; t < this.length; t++) {
        sum += curve[t];
        curve[t] = sum;
      }
    }
    const scratch = this.byKind[data.kinds.indexOf("temporaries")];
    this.ops.scratch.forEach((n, t) => { scratch[t] += n; });
    for (const curve of this.byKind) for (let t = 0; t < this.length; t++) this.total[t] += curve[t];
    // Buffers in the arena, by birth: what the keyboard walks through.
    this.drawn = [];
    for (let i = 0; i < this.count; i++) if (b.at[i] !== null) this.drawn.push(i);
    this.drawn.sort((x, y) => b.from[x] - b.from[y] || b.at[x] - b.at[y]);
    this.rank = new Map(this.drawn.map((i, k) => [i, k]));
  }
  name(i) { return data.texts[this.buffers.name[i]]; }
  line(i) { return this.buffers.line[i] === null ? null : data.lines[this.buffers.line[i]]; }
}

const cache = new Map();
const state = { step: 0, order: 0, from: 0, to: 1, low: 0, high: 1, hover: null, held: null };
const step = () => data.steps[state.step];
function order(which = state.order) {
  const key = `${state.step}/${which}`;
  if (!cache.has(key)) cache.set(key, new Order(step().orders[which]));
  return cache.get(key);
}

/** A canvas in device pixels, cleared; draws in CSS pixels. */
function surface(chart, layer) {
  const canvas = byId(chart).children[layer];
  const { width, height } = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  return { g, width, height };
}
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Time to x and address to y, in the part of the plan that is shown.
const x = (t, width) => (t - state.from) / (state.to - state.from) * width;
const y = (a, height) => height - (a - state.low) / (state.high - state.low) * height;

// Above the curve, for what is written of its peak: on the curve it would hide that.
const CURVE_HEAD = 18;

function drawCurve() {
  const { g, width, height } = surface("curve", 0);
  const room = height - CURVE_HEAD;
  const o = order();
  const highest = Math.max(...step().orders.map((_, k) => mostOf(order(k)))) * 1.05 || 1;
  const columns = Math.max(1, Math.floor(width));
  const curveOf = (o) => {
    // In each column the position with the most alive, so that no peak is lost.
    const at = new Int32Array(columns);
    for (let c = 0; c < columns; c++) {
      const first = Math.floor(state.from + (state.to - state.from) * c / columns);
      const last = Math.max(first + 1, Math.ceil(state.from + (state.to - state.from) * (c + 1) / columns));
      let best = -1;
      for (let t = Math.max(0, first); t < Math.min(last, o.length); t++) if (best < 0 || o.total[t] > o.total[best]) best = t;
      at[c] = best;
    }
    return at;
  };
  const at = curveOf(o);
  for (let c = 0; c < columns; c++) {
    if (at[c] < 0) continue;
    let below = 0;
    for (const kind of STACK) {
      const here = o.byKind[kind][at[c]];
      if (here <= 0) continue;
      g.fillStyle = colorOf[kind];
      g.fillRect(c, height - (below + here) / highest * room, 1, here / highest * room);
      below += here;
    }
  }
  // The other order as a line, over its own time stretched to the same width.
  step().orders.forEach((_, k) => {
    if (k === state.order) return;
    const other = order(k);
    g.strokeStyle = css("--other");
    g.lineWidth = 1.5;
    g.beginPath();
    curveOf(other).forEach((t, c) => { if (t >= 0) g.lineTo(c + .5, height - other.total[t] / highest * room); });
    g.stroke();
  });
  const level = (value, color, text) => {
    const at = height - value / highest * room;
    g.strokeStyle = g.fillStyle = color;
    g.setLineDash([5, 4]);
    g.lineWidth = 1;
    g.beginPath(); g.moveTo(0, at); g.lineTo(width, at); g.stroke();
    g.setLineDash([]);
    g.fillText(text, 5, 13);
  };
  g.font = "12px system-ui, sans-serif";
  level(o.total[o.peak] ?? 0, css("--mark"), `most alive ${bytes(o.total[o.peak] ?? 0)}, at op ${o.peak + 1} of ${o.length}`);
  drawMarks();
}
function mostOf(o) {
  let most = 0;
  for (const t of o.total) if (t > most) most = t;
  return most;
}

function drawMap() {
  const { g, width, height } = surface("map", 0);
  const o = order(), b = o.buffers;
  const unit = width / (state.to - state.from), scale = height / (state.high - state.low);
  g.fillStyle = css("--panel");
  g.fillRect(x(0, width), y(o.arena, height), o.length * unit, o.arena * scale);
  for (const i of o.drawn) {
    if (b.to[i] + 1 < state.from || b.from[i] > state.to) continue;
    const w = Math.max(.5, (b.to[i] + 1 - b.from[i]) * unit), h = Math.max(.5, b.bytes[i] * scale);
    const left = x(b.from[i], width), above = y(b.at[i] + b.bytes[i], height);
    g.fillStyle = colorOf[b.kind[i]];
    g.fillRect(left, above, w > 3 ? w - .5 : w, h > 3 ? h - .5 : h);
    if (w > 48 && h > 15) nameOn(g, o.name(i), left, w, above + h / 2, width);
  }
  o.ops.at.forEach((at, t) => {
    if (at === null || o.ops.scratch[t] === 0 || t + 1 < state.from || t > state.to) return;
    g.fillStyle = COLORS.temporaries;
    g.fillRect(x(t, width), y(at + o.ops.scratch[t], height), Math.max(.5, unit), Math.max(.5, o.ops.scratch[t] * scale));
  });
  drawMarks();
}

/** A name inside of a block, as much of it as is on the screen, or none. */
function nameOn(g, name, left, w, middle, width) {
  const from = Math.max(left, 0) + 5, room = Math.min(left + w, width) - 4 - from;
  g.font = "12px system-ui, sans-serif";
  g.textBaseline = "middle";
  g.fillStyle = "#10141a";
  if (g.measureText(name).width <= room) g.fillText(name, from, middle);
  g.textBaseline = "alphabetic";
}

/** What the charts are drawn over: bytes at the left, ops below. */
function drawScales() {
  const o = order();
  const first = Math.max(1, Math.floor(state.from) + 1), last = Math.min(o.length, Math.ceil(state.to));
  const texts = (id, ...all) => byId(id).replaceChildren(...all.map((text) => make("span", text)));
  texts("time", `op ${first}`, "time, in the order in which ops run", `op ${last}`);
  texts("address", `the arena by address: ${bytes(Math.round(state.low))} below, ${bytes(Math.round(state.high))} above`);
}

/** The peak, and the buffer that is held or under the pointer, over both charts. */
function drawMarks() {
  const o = order(), b = o.buffers;
  drawScales();
  for (const chart of ["curve", "map"]) {
    const { g, width, height } = surface(chart, 1);
    g.strokeStyle = css("--mark");
    const at = x(o.peak + .5, width);
    g.beginPath(); g.moveTo(at, 0); g.lineTo(at, height); g.stroke();
    for (const i of [state.held, state.hover]) {
      if (i === null) continue;
      const left = x(b.from[i], width), w = Math.max(2, x(b.to[i] + 1, width) - left);
      g.strokeStyle = css("--ink");
      g.lineWidth = 2;
      if (chart === "curve" || b.at[i] === null) {
        g.strokeRect(left, height - 3, w, 2);
      } else {
        const above = y(b.at[i] + b.bytes[i], height);
        g.strokeRect(left, above, w, Math.max(2, y(b.at[i], height) - above));
      }
      g.lineWidth = 1;
    }
  }
}

function make(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function showDetails() {
  const box = byId("details"), o = order(), b = o.buffers;
  const i = state.hover ?? state.held;
  box.replaceChildren();
  if (i === null) {
    const t = o.peak;
    make("h2", "The peak", box);
    const line = o.ops.line[t] === null || o.ops.line[t] === undefined ? null : data.lines[o.ops.line[t]];
    make("p", o.ops.name.length ? `At op ${t + 1} of ${o.length}, ${data.texts[o.ops.name[t]]}${line ? `, ${line[0]}` : ""}.` : "The step runs no op.", box);
    if (line) make("pre", line[1].trim(), box);
    const kinds = data.kinds.map((kind, k) => [kind, o.byKind[k][t] || 0, k]).filter((k) => k[1] > 0);
    const list = make("dl", undefined, box);
    list.className = "kinds";
    for (const [kind, here, k] of kinds.sort((p, q) => q[1] - p[1])) {
      make("i", undefined, make("dt", undefined, list)).style.background = colorOf[k];
      make("dd", kind, list);
      make("dd", bytes(here), list);
    }
    return;
  }
  make("h2", o.name(i), box);
  const list = make("dl", undefined, box);
  const row = (term, text) => { make("dt", term, list); return make("dd", text, list); };
  if (b.type[i] !== null) row("type", data.texts[b.type[i]]);
  row("size", `${bytes(b.bytes[i])} (${b.bytes[i]} bytes)`);
  row("kind", data.kinds[b.kind[i]]);
  row("place", b.at[i] === null ? "outside the arena, for good" : `bytes ${b.at[i]} to ${b.at[i] + b.bytes[i]} of the arena`);
  row("alive", `op ${b.from[i] + 1} to ${b.to[i] + 1} of ${o.length}${b.from[i] <= o.peak && o.peak <= b.to[i] ? ", at the peak" : ""}`);
  const made = o.line(i);
  // What is there before the step has no line that makes it, only a first one that reads it.
  const born = row(data.kinds[b.kind[i]] === "params" || data.kinds[b.kind[i]] === "state" ? "first read" : "made", made ? made[0] : "before the step");
  if (made) make("pre", made[1].trim(), born);
  const keeper = b.byLine[i] === null ? null : data.lines[b.byLine[i]];
  const kept = row("kept by", `${data.texts[b.by[i]]}${keeper ? `, ${keeper[0]}` : ""}`);
  if (keeper) make("pre", keeper[1].trim(), kept);
}

/** Buffers that a search finds, or those at the peak, largest first. */
function showList() {
  const o = order(), b = o.buffers, wanted = byId("find").value.trim().toLowerCase();
  const found = [];
  for (let i = 0; i < o.count; i++) {
    const isFound = wanted
      ? o.name(i).toLowerCase().includes(wanted) || (o.line(i) || [""])[0].toLowerCase().endsWith(`:${wanted}`)
      : b.from[i] <= o.peak && o.peak <= b.to[i];
    if (isFound) found.push(i);
  }
  found.sort((p, q) => b.bytes[q] - b.bytes[p] || p - q);
  const shown = found.slice(0, 200);
  byId("list-title").textContent = wanted
    ? `${found.length} found${found.length > shown.length ? `, ${shown.length} largest shown` : ""}`
    : `Alive at the peak: ${found.length}${found.length > shown.length ? `, ${shown.length} largest shown` : ""}`;
  byId("list").replaceChildren(...shown.map((i) => {
    const button = document.createElement("button");
    make("span", o.name(i), button);
    const line = o.line(i);
    make("span", line ? `line ${line[0].split(":").pop()}` : "", button).className = "line";
    make("span", bytes(b.bytes[i]), button);
    button.dataset.buffer = i;
    button.addEventListener("click", () => hold(i));
    button.addEventListener("mouseenter", () => hover(i));
    button.addEventListener("mouseleave", () => hover(null));
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
}

function hover(i) {
  if (state.hover === i) return;
  state.hover = i;
  drawMarks();
  showDetails();
}
function hold(i) {
  state.held = i;
  if (i !== null) reveal(i);
  for (const button of document.querySelectorAll("#list button")) {
    button.setAttribute("aria-current", String(Number(button.dataset.buffer) === i));
  }
  drawMarks();
  showDetails();
}
/** Moves the shown part so that a buffer is in it. */
function reveal(i) {
  const o = order(), b = o.buffers;
  const span = state.to - state.from, rise = state.high - state.low;
  const start = b.from[i], end = b.to[i] + 1;
  let moved = false;
  if (end <= state.from || start >= state.to) {
    state.from = Math.max(0, Math.min(o.length - span, (start + end - span) / 2));
    state.to = state.from + span;
    moved = true;
  }
  if (b.at[i] !== null && (b.at[i] + b.bytes[i] <= state.low || b.at[i] >= state.high)) {
    state.low = Math.max(0, b.at[i] + b.bytes[i] / 2 - rise / 2);
    state.high = state.low + rise;
    moved = true;
  }
  if (moved) { drawCurve(); drawMap(); }
}

function showAll() {
  const o = order();
  Object.assign(state, { from: 0, to: o.length, low: 0, high: Math.max(1, o.arena) });
  drawCurve();
  drawMap();
}
function zoom(factor, t, a) {
  const o = order();
  const limit = (low, high, end, least) => {
    const span = Math.min(end, Math.max(least, high - low));
    const start = Math.min(end - span, Math.max(0, low));
    return [start, start + span];
  };
  [state.from, state.to] = limit(t - (t - state.from) * factor, t + (state.to - t) * factor, o.length, Math.min(o.length, 4));
  [state.low, state.high] = limit(a - (a - state.low) * factor, a + (state.high - a) * factor, Math.max(1, o.arena), Math.min(Math.max(1, o.arena), 1024));
  drawCurve();
  drawMap();
}
function move(dt, da) {
  const o = order();
  dt = Math.max(-state.from, Math.min(o.length - state.to, dt));
  da = Math.max(-state.low, Math.min(Math.max(1, o.arena) - state.high, da));
  state.from += dt; state.to += dt; state.low += da; state.high += da;
  drawCurve();
  drawMap();
}

/** The buffer at a point of the map, in CSS pixels from its corner. */
function bufferAt(left, above) {
  const { width, height } = byId("map").getBoundingClientRect();
  const t = state.from + left / width * (state.to - state.from);
  const a = state.low + (height - above) / height * (state.high - state.low);
  const o = order(), b = o.buffers;
  for (const i of o.drawn) {
    if (b.from[i] > t) break;
    if (t < b.to[i] + 1 && b.at[i] <= a && a < b.at[i] + b.bytes[i]) return i;
  }
  return null;
}
/** Where the middle of a buffer is on the screen. */
function placeOf(i) {
  const o = order(), b = o.buffers, box = byId("map").getBoundingClientRect();
  return {
    x: box.left + x((b.from[i] + b.to[i] + 1) / 2, box.width),
    y: box.top + y(b.at[i] + b.bytes[i] / 2, box.height),
  };
}

function figures() {
  const s = step(), box = byId("figures");
  box.replaceChildren();
  const add = (label, value) => { box.append(`${label} `); make("b", value, box); };
  add("peak", bytes(s.peak));
  const gap = s.bound > 0 ? ` (gap ${((s.peak - s.bound) / s.bound * 100).toFixed(2)} %)` : "";
  add(", lower bound", `${bytes(s.bound)}${gap}`);
  if (s.worst !== null) add(", in every legal order at most", bytes(s.worst));
  add(". Parameters and state", bytes(order().persistent));
  add(", arena", bytes(order().arena));
  add(", buffers", String(order().count));
  byId("legend").replaceChildren();
  data.kinds.forEach((kind, k) => {
    if (!order().buffers.kind.includes(k)) return;
    const entry = make("span", undefined, byId("legend"));
    make("i", undefined, entry).style.background = colorOf[k];
    entry.append(kind);
  });
  if (s.orders.length > 1) {
    const entry = make("span", undefined, byId("legend"));
    make("i", undefined, entry).style.background = css("--other");
    entry.append(`line: ${s.orders[1 - state.order].label} order`);
  }
}

function choose(stepIndex, orderIndex) {
  Object.assign(state, { step: stepIndex, order: orderIndex, hover: null, held: null });
  byId("step").value = stepIndex;
  byId("order").replaceChildren(...step().orders.map((o, k) => new Option(o.label, k)));
  byId("order").value = orderIndex;
  figures();
  showAll();
  showDetails();
  showList();
}

function walk(by) {
  const o = order();
  if (!o.drawn.length) return;
  const from = state.held !== null && o.rank.has(state.held) ? o.rank.get(state.held) : by > 0 ? -1 : 0;
  hold(o.drawn[(from + by + o.drawn.length) % o.drawn.length]);
}
/** The buffer above or below the held one, at the time it is born. */
function climb(up) {
  const o = order(), b = o.buffers, i = state.held;
  if (i === null || b.at[i] === null) return walk(1);
  let best = null;
  for (const k of o.drawn) {
    if (k === i || b.from[k] > b.from[i] || b.to[k] < b.from[i]) continue;
    const further = up ? b.at[k] > b.at[i] : b.at[k] < b.at[i];
    if (further && (best === null || (up ? b.at[k] < b.at[best] : b.at[k] > b.at[best]))) best = k;
  }
  if (best !== null) hold(best);
}

function start() {
  if (!data.steps.length) {
    byId("figures").textContent = "The program has no steps.";
    return;
  }
  byId("step").replaceChildren(...data.steps.map((s, k) => new Option(s.name, k)));
  byId("step").addEventListener("change", (e) => choose(Number(e.target.value), 0));
  byId("order").addEventListener("change", (e) => choose(state.step, Number(e.target.value)));
  byId("find").addEventListener("input", showList);
  const map = byId("map");
  let drag = null;
  const point = (e) => { const box = map.getBoundingClientRect(); return [e.clientX - box.left, e.clientY - box.top, box]; };
  map.addEventListener("pointerdown", (e) => { drag = { x: e.clientX, y: e.clientY, moved: false }; });
  window.addEventListener("pointerup", (e) => {
    if (drag && !drag.moved && map.contains(e.target)) { const [left, above] = point(e); hold(bufferAt(left, above)); }
    drag = null;
  });
  map.addEventListener("pointermove", (e) => {
    const [left, above, box] = point(e);
    if (drag && (drag.moved || Math.hypot(e.clientX - drag.x, e.clientY - drag.y) > 4)) {
      move(-(e.clientX - drag.x) / box.width * (state.to - state.from), (e.clientY - drag.y) / box.height * (state.high - state.low));
      drag = { x: e.clientX, y: e.clientY, moved: true };
    } else {
      hover(bufferAt(left, above));
    }
  });
  map.addEventListener("pointerleave", () => hover(null));
  map.addEventListener("wheel", (e) => {
    e.preventDefault();
    const [left, above, box] = point(e);
    zoom(e.deltaY > 0 ? 1.25 : .8, state.from + left / box.width * (state.to - state.from),
      state.low + (box.height - above) / box.height * (state.high - state.low));
  }, { passive: false });
  window.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const isTyping = e.target.matches("input, select");
    if (e.key === "Escape") { byId("find").value = ""; hold(null); showList(); showAll(); map.focus(); return; }
    if (isTyping) return;
    const inMap = document.activeElement === map || document.activeElement === document.body;
    const actions = {
      "/": () => byId("find").focus(),
      p: () => { const o = order(); zoom(.5, o.peak + .5, (state.low + state.high) / 2); },
      w: () => { if (step().orders.length > 1) choose(state.step, 1 - state.order); },
      "+": () => zoom(.8, (state.from + state.to) / 2, (state.low + state.high) / 2),
      "=": () => zoom(.8, (state.from + state.to) / 2, (state.low + state.high) / 2),
      "-": () => zoom(1.25, (state.from + state.to) / 2, (state.low + state.high) / 2),
    };
    if (inMap) Object.assign(actions, { ArrowRight: () => walk(1), ArrowLeft: () => walk(-1), ArrowUp: () => climb(true), ArrowDown: () => climb(false) });
    const action = actions[e.key] || actions[e.key.toLowerCase()];
    if (action) { e.preventDefault(); action(); }
  });
  window.addEventListener("resize", () => { drawCurve(); drawMap(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { figures(); drawCurve(); drawMap(); });
  choose(0, 0);
}
start();
