"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const audits = data.audits, shares = new Set(data.shares);
const $ = id => document.getElementById(id);
const show = x => x === null || x === undefined ? "–" : Math.abs(x) >= 1e5 || (x && Math.abs(x) < 1e-3) ? x.toExponential(1) : String(+x.toPrecision(3));
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["--a", "--b", "--c", "--d", "--e"];

function make(name, attributes = {}, parent = null, text = null) {
  const node = name in { svg: 1, g: 1, rect: 1, text: 1, line: 1, path: 1, circle: 1, title: 1 } ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}
const mix = (share, colour) => `color-mix(in oklab, var(${colour}) ${Math.round(100 * share)}%, var(--cold))`;

// --- the map of heads: layers down, heads across ---------------------------------------------------------------------
let quantity = null, which = 0, chosen = [0, 0];
const values = () => which === "difference" ? data.difference[quantity] : audits[which].heads[quantity];

const named = name => data.names[name] || name.replaceAll("_", " ");
// Models that stand side by side are drawn on one scale.
function range(rows) {
  const shown = which === "difference" ? [rows] : audits.map(a => a.heads[quantity]).filter(Boolean);
  const all = shown.flat(2).filter(x => x !== null);
  if (which === "difference") { const most = Math.max(...all.map(Math.abs), 1e-12); return [-most, most]; }
  if (shares.has(quantity)) return [0, Math.max(...all, 1e-12)];
  return [Math.min(...all), Math.max(...all)];
}
function colour(x, [low, high]) {
  if (x === null) return "var(--paper)";
  if (which === "difference") return mix(Math.abs(x) / high, x < 0 ? "--less" : "--more");
  return mix(high > low ? (x - low) / (high - low) : 0, "--hot");
}
function drawMap() {
  const rows = values(), ends = range(rows), layers = rows.length, heads = rows[0].length;
  const size = Math.max(11, Math.min(30, Math.floor(620 / heads), Math.floor(640 / layers)));
  const box = $("map"); box.replaceChildren();
  const svg = make("svg", { width: heads * size + 34, height: layers * size + 20, role: "group", "aria-label": `${named(quantity)} of every head; arrow keys move from head to head` }, box);
  rows.forEach((row, l) => {
    if (layers < 16 || l % 2 === 0) make("text", { x: 26, y: l * size + size / 2 + 4, "text-anchor": "end", class: "quiet" }, svg, l);
    row.forEach((x, h) => {
      const picked = l === chosen[0] && h === chosen[1];
      const cell = make("rect", { x: 32 + h * size, y: l * size + 1, width: size, height: size, class: picked ? "cell chosen" : "cell", role: "button", tabindex: picked ? 0 : -1, "aria-pressed": picked, "aria-label": `layer ${l}, head ${h}: ${show(x)}` }, svg);
      cell.addEventListener("keydown", event => {
        const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (!step) return;
        event.preventDefault();
        choose(Math.min(layers - 1, Math.max(0, l + step[0])), Math.min(heads - 1, Math.max(0, h + step[1])));
        document.querySelector("#map .chosen").focus();
      });
      cell.style.fill = colour(x, ends);
      make("title", {}, cell, `(${l}, ${h}): ${show(x)}`);
      cell.addEventListener("click", () => choose(l, h));
    });
  });
  for (let h = 0; h < heads; h += heads > 16 ? 4 : 1) make("text", { x: 32 + h * size + size / 2, y: layers * size + 15, "text-anchor": "middle", class: "quiet" }, svg, h);
  const shades = make("svg", { width: 330, height: 22, "aria-hidden": true }, box);
  make("text", { x: 80, y: 14, "text-anchor": "end", class: "quiet" }, shades, show(ends[0]));
  for (let i = 0; i < 24; i++) make("rect", { x: 88 + 6 * i, y: 4, width: 6, height: 12 }, shades).style.fill = colour(ends[0] + i / 23 * (ends[1] - ends[0]), ends);
  make("text", { x: 240, y: 14, class: "quiet" }, shades, show(ends[1]));
  make("div", { class: "meta" }, box, "down: layer; across: head. Choose one, or move with the arrow keys, to see its card");
  $("words").textContent = data.words[quantity] + (which === "difference" ? "; the second model less the first" : "");
  drawSpread();
}

// --- how this model's heads lie beside the references ----------------------------------------------------------------
function drawSpread() {
  const box = $("spread"); box.replaceChildren();
  const rows = audits.map(a => [a.model, a.heads[quantity]?.flat().filter(x => x !== null).sort((x, y) => x - y)]);
  for (const a of audits) for (const [name, sorted] of Object.entries(a.sorted)) if (sorted[quantity] && !rows.some(r => r[0] === name)) rows.push([name, sorted[quantity]]);
  const kept = rows.filter(r => r[1] && r[1].length), all = kept.flatMap(r => r[1]);
  const low = Math.min(...all), high = Math.max(...all), width = 260, at = x => 110 + (high > low ? (x - low) / (high - low) : 0) * (width - 10);
  const svg = make("svg", { width: width + 130, height: kept.length * 30 + 44, class: "shrinks", viewBox: `0 0 ${width + 130} ${kept.length * 30 + 44}`, role: "img", "aria-label": `spread of ${named(quantity)} over heads` }, box);
  make("text", { x: 110 + (width - 10) / 2, y: kept.length * 30 + 38, "text-anchor": "middle", class: "quiet" }, svg, named(quantity) + ", a line for each head");
  kept.forEach(([name, sorted], i) => {
    const y = 16 + i * 30;
    make("text", { x: 100, y: y + 4, "text-anchor": "end" }, svg, name.length > 16 ? "…" + name.slice(-15) : name);
    for (const x of sorted) make("line", { x1: at(x), x2: at(x), y1: y - 7, y2: y + 7, stroke: `var(${i < audits.length ? "--hot" : "--quiet"})`, "stroke-opacity": .45 }, svg);
    const middle = sorted[Math.floor(sorted.length / 2)];
    make("circle", { cx: at(middle), cy: y, r: 4, fill: "var(--ink)" }, svg);
    make("title", {}, svg.lastChild, `median ${show(middle)}`);
  });
  make("text", { x: 110, y: kept.length * 30 + 20, class: "quiet" }, svg, show(low));
  make("text", { x: width + 100, y: kept.length * 30 + 20, "text-anchor": "end", class: "quiet" }, svg, show(high));
}

// --- the card of one head --------------------------------------------------------------------------------------------
function choose(l, h) { chosen = [l, h]; drawMap(); drawCard(); }
function rank(sorted, x) { return sorted && sorted.length && x !== null ? Math.round(100 * sorted.filter(y => y <= x).length / sorted.length) + " %" : "–"; }
function drawCard() {
  const box = $("card"), [l, h] = chosen, first = audits[0], references = Object.keys(first.sorted);
  box.replaceChildren();
  const kind = audits.map(a => a.heads.kind?.[l]?.[h]).filter(Boolean);
  make("h3", {}, box, `Head (${l}, ${h})` + (kind.length ? `: ${kind.join(", then ")}` : ""));
  const side = make("div", { class: "side" }, box);
  if (first.example) drawAttention(side, l, h);
  const table = make("table", { class: "dense" }, make("div", { class: "tall", tabindex: 0, role: "region", "aria-label": "Quantities of the head" }, side));
  const head = make("tr", {}, make("thead", {}, table));
  for (const name of ["quantity", ...audits.map(a => audits.length > 1 ? a.model : "this head"), ...references.flatMap(r => [`${r}, median`, `heads of ${r} below`])]) make("th", {}, head, name);
  const body = make("tbody", {}, table);
  for (const name of Object.values(data.groups).flat()) {
    if (!first.heads[name]) continue;
    const row = make("tr", { title: data.words[name] }, body), x = first.heads[name][l][h];
    make("td", {}, row, named(name));
    for (const a of audits) make("td", {}, row, show(a.heads[name]?.[l]?.[h]));
    for (const r of references) { make("td", {}, row, show(first.references[r][name]?.[2])); make("td", {}, row, rank(first.sorted[r][name], x)); }
  }
}
function drawAttention(box, l, h) {
  const holder = make("div", {}, box);
  for (const audit of audits.filter(a => a.example)) {
    const pieces = audit.example.pieces, n = pieces.length, heads = audit.heads.axes.head;
    audit.bytes ??= Uint8Array.from(atob(audit.example.attention), c => c.charCodeAt(0));
    const size = 15, left = 86, top = 86;
    if (audits.length > 1) make("div", { class: "meta" }, holder, audit.model);
    const svg = make("svg", { width: left + n * size + 6, height: top + n * size + 4, role: "img", "aria-label": "attention over an example" }, holder);
    const word = p => (p.replace(/^[Ġ▁]/, "") || "␣").slice(0, 11);
    pieces.forEach((piece, i) => {
      make("text", { x: left - 5, y: top + i * size + 11, "text-anchor": "end" }, svg, word(piece));
      make("text", { transform: `translate(${left + i * size + 11}, ${top - 5}) rotate(-90)` }, svg, word(piece));
    });
    for (let q = 0; q < n; q++) for (let k = 0; k < n; k++) {
      const weight = audit.bytes[((l * heads + h) * n + q) * n + k] / 255;
      const cell = make("rect", { x: left + k * size, y: top + q * size, width: size - 1, height: size - 1 }, svg);
      cell.style.fill = mix(Math.sqrt(weight), "--hot");
      make("title", {}, cell, `${word(pieces[q])} → ${word(pieces[k])}: ${show(weight)}`);
    }
    make("div", { class: "meta" }, holder, "row: the query's token; column: the token that it attends to");
  }
}

// --- the table of all heads ------------------------------------------------------------------------------------------
let order = ["single_location", -1];
function drawTable() {
  const box = $("table"), audit = audits[which === "difference" ? 0 : which], names = data.columns.filter(c => audit.heads[c]);
  box.replaceChildren();
  if (!names.includes(order[0]) && order[0] !== "head") order = [names[0], -1];
  const table = make("table", { class: "dense" }, box), head = make("tr", {}, make("thead", {}, table));
  for (const name of ["head", ...(audit.heads.kind ? ["kind"] : []), ...names]) {
    const th = make("th", { title: data.words[name] || "", "aria-sort": order[0] === name ? (order[1] > 0 ? "ascending" : "descending") : "none" }, head);
    const button = make("button", {}, th, named(name) + (order[0] === name ? (order[1] > 0 ? " ▲" : " ▼") : ""));
    button.addEventListener("click", () => { order = [name, order[0] === name ? -order[1] : name === "head" || name === "kind" ? 1 : -1]; drawTable(); });
  }
  const body = make("tbody", {}, table), rows = [];
  for (let l = 0; l < audit.heads.axes.layer; l++) for (let h = 0; h < audit.heads.axes.head; h++) rows.push([l, h]);
  const key = ([l, h]) => order[0] === "head" ? l * 1e4 + h : audit.heads[order[0]][l][h];
  rows.sort((a, b) => { const x = key(a), y = key(b); return x === null ? 1 : y === null ? -1 : (x < y ? -1 : x > y ? 1 : 0) * order[1]; });
  for (const [l, h] of rows) {
    const row = make("tr", { class: "row" }, body);
    make("button", {}, make("td", {}, row), `(${l}, ${h})`);
    if (audit.heads.kind) make("td", {}, row, audit.heads.kind[l][h]);
    for (const name of names) make("td", {}, row, show(audit.heads[name][l][h]));
    row.addEventListener("click", () => { choose(l, h); $("card").scrollIntoView({ behavior: "smooth", block: "nearest" }); });
  }
}

// --- lines -----------------------------------------------------------------------------------------------------------
function lines(box, title, series, { x = null, low = null, high = null, across = "layer" } = {}) {
  const width = 420, height = 230, left = 52, bottom = 34, top = 26;
  const holder = make("div", {}, box), all = series.flatMap(s => s.values).filter(v => v !== null);
  if (!all.length) return;
  const least = low ?? Math.min(...all, 0), most = high ?? Math.max(...all), count = Math.max(...series.map(s => s.values.length));
  const px = i => left + (count > 1 ? i / (count - 1) : .5) * (width - left - 12), py = v => top + (most - v) / (most - least || 1) * (height - top - bottom);
  const svg = make("svg", { width, height, class: "shrinks", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, holder);
  make("text", { x: 4, y: 14 }, svg, title);
  for (const share of [0, .25, .5, .75, 1]) {
    const v = least + share * (most - least);
    make("line", { x1: left, x2: width - 12, y1: py(v), y2: py(v), class: "axis" }, svg);
    make("text", { x: left - 6, y: py(v) + 4, "text-anchor": "end", class: "quiet" }, svg, show(v));
  }
  const every = Math.ceil(count / 12);
  for (let i = 0; i < count; i += every) make("text", { x: px(i), y: height - bottom + 16, "text-anchor": "middle", class: "quiet" }, svg, x ? x[i] : i);
  make("text", { x: width - 12, y: height - 4, "text-anchor": "end", class: "quiet" }, svg, across);
  for (const s of series) {
    const path = s.values.map((v, i) => v === null ? null : `${px(i)},${py(v)}`).filter(Boolean).join("L");
    make("path", { d: "M" + path, fill: "none", stroke: `var(${s.colour})`, "stroke-width": 2, ...(s.dashed ? { "stroke-dasharray": "5 4", "stroke-opacity": .8 } : {}) }, svg);
    if (!s.dashed) s.values.forEach((v, i) => { if (v !== null) make("title", {}, make("circle", { cx: px(i), cy: py(v), r: 3, fill: `var(${s.colour})` }, svg), `${s.name}, ${across} ${x ? x[i] : i}: ${show(v)}`); });
  }
  const keys = make("div", { class: "meta" }, holder);
  for (const s of series) if (s.name) { const key = make("span", {}, keys); const mark = make("span", { class: "key" }, key); mark.style.background = `var(${s.colour})`; key.append(s.name); }
}
function drawCapacity() {
  const box = $("capacity");
  const of = (name, words) => audits.filter(a => a.layers[name]).map((a, i) => ({ name: (audits.length > 1 ? a.model + ", " : "") + words, values: a.layers[name], colour: COLOURS[i] }));
  const beside = (name, from) => Object.entries(audits[0].reference_layers).filter(([, l]) => l[name]).map(([title, l], i) => ({ name: title + " (dashed)", values: l[name], colour: COLOURS[from + i], dashed: true }));
  lines(box, "Lipschitz bound of each layer, log10", [...beside("log10_lipschitz", 3), ...of("log10_lipschitz", "norms as projections"), ...audits.filter(a => a.layers.log10_lipschitz_stretched).map((a, i) => ({ name: "with the norms' stretch", values: a.layers.log10_lipschitz_stretched, colour: COLOURS[audits.length + i] }))]);
  lines(box, "Nats that the weights of a layer add to the bound, log10", [...beside("log10_nats", 3), ...audits.flatMap((a, i) => [["nats_query_key", "query-key"], ["nats_output_value", "output-value"], ["nats_position_wise", "position-wise"]].map(([name, words], j) => ({ name: (audits.length > 1 ? a.model + ", " : "") + words, values: a.layers["log10_" + name], colour: COLOURS[(3 * i + j) % 5] })))]);
  const turning = audits.filter(a => a.facts.rotary && a.heads.qk_spectral_at);
  const norms = turning.flatMap(a => a.heads.qk_spectral_at.flat(2));
  for (const a of turning) {
    if (!$("rotary").children.length) make("p", {}, $("rotary"), "Rotary positions turn queries and keys, so that the query-key product depends on the offset between them. Its spectral norm, over heads:");
    const panel = make("div", { class: "panel" }, $("rotary")), at = a.heads.qk_spectral_at, offsets = a.heads.offset;
    const sorted = offsets.map((_, i) => at.flat().map(row => row[i]).sort((x, y) => x - y));
    const pick = share => sorted.map(s => s[Math.round(share * (s.length - 1))]);
    lines(panel, `${a.model}: spectral norm of the query-key product`, [{ name: "largest", values: pick(1), colour: "--b" }, { name: "median", values: pick(.5), colour: "--a" }, { name: "smallest", values: pick(0), colour: "--c" }], { x: offsets, across: "offset between query and key (tokens)", low: 0, high: Math.max(...norms) });
  }
}
function drawProbes() {
  if (!$("probes")) return;
  const drawn = new Set(), every = audits.flatMap(a => [...a.probes, ...Object.values(a.reference_probes).flat()]);
  const lowest = Math.min(.4, ...every.flatMap(found => [...found.accuracy.flat(2), ...found.words]));
  for (const found of every) {
    const words = found.attributes;
    if (drawn.has(words.model + words.text)) continue;
    drawn.add(words.model + words.text);
    make("h3", {}, $("probes"), `${words.model}, ${words.text}`);
    const panel = make("div", { class: "panel side" }, $("probes"));
    found.pool.forEach((pool, p) => {
      const series = found.set.flatMap((set, s) => [
        { name: set, values: found.layer.map((_, l) => found.accuracy[p][l][s]), colour: COLOURS[s % 5] },
        { name: "", values: found.layer.map(() => found.words[s]), colour: COLOURS[s % 5], dashed: true }]);
      lines(panel, "share of texts classified correctly, " + (pool === "reader" ? `at ${words.reader}` : "mean over tokens"), series, { low: lowest, high: 1 });
    });
    const numbers = make("details", {}, panel); make("summary", { class: "meta" }, numbers, "as a table");
    const table = make("table", { class: "dense" }, numbers), head = make("tr", {}, make("thead", {}, table)), body = make("tbody", {}, table);
    for (const name of ["layer", ...found.set.flatMap(s => [`${s}, ${words.reader}`, `${s}, mean`])]) make("th", {}, head, name);
    found.layer.forEach((l, i) => { const row = make("tr", {}, body); make("td", {}, row, l); found.set.forEach((_, s) => { for (const p of [0, 1]) make("td", {}, row, show(found.accuracy[p][i][s])); }); });
    const row = make("tr", {}, body); make("td", {}, row, "word counts"); found.set.forEach((_, s) => { make("td", {}, row, show(found.words[s])); make("td", {}, row, ""); });
    const sizes = make("tr", {}, body); make("td", {}, sizes, "texts"); found.set.forEach((_, s) => { make("td", {}, sizes, found.texts[s]); make("td", {}, sizes, ""); });
  }
}

// --- begin -----------------------------------------------------------------------------------------------------------
for (const [group, names] of Object.entries(data.groups)) {
  const here = names.filter(name => audits.every(a => a.heads[name]));
  if (!here.length) continue;
  const options = make("optgroup", { label: group }, $("quantity"));
  for (const name of here) make("option", { value: name }, options, named(name));
}
quantity = $("quantity").value;
audits.forEach((a, i) => make("option", { value: i }, $("which"), a.model));
if (data.difference) make("option", { value: "difference" }, $("which"), "second less first");
$("which-label").hidden = audits.length === 1;
$("quantity").addEventListener("change", event => { quantity = event.target.value; drawMap(); });
$("which").addEventListener("change", event => { which = event.target.value === "difference" ? "difference" : +event.target.value; drawMap(); drawTable(); });
const best = audits[0].heads[quantity].flatMap((row, l) => row.map((x, h) => [x ?? -Infinity, l, h])).sort((a, b) => b[0] - a[0])[0];
chosen = best.slice(1);
drawMap(); drawCard(); drawTable(); drawCapacity(); drawProbes();
