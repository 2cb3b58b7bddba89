"use strict";
// Figures: drawn from their Vega-Lite specification at the width of their card, in the colours of the page, with
// legends that switch their series, logarithmic axes, and pictures to take away. `DARK` stands before this text.

const CHANNELS = ["color", "strokeDash", "shape"];
const NARROW = 560; // pixels below which panels stand one below another
const SHAPES = {
  circle: "M5 0A5 5 0 1 1-5 0A5 5 0 1 1 5 0", square: "M-4.5-4.5H4.5V4.5H-4.5Z", diamond: "M0-6 5 0 0 6-5 0Z", cross: "M-5-1.7H-1.7V-5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5Z",
  "triangle-up": "M0-5 5 4-5 4Z", "triangle-down": "M0 5 5-4-5-4Z", "triangle-right": "M5 0-4 5-4-5Z", "triangle-left": "M-5 0 4 5 4-5Z",
};
const dark = matchMedia("(prefers-color-scheme: dark)");
let printing = false;

const children = (view) => view.concat || view.vconcat || view.hconcat || view.layer || (view.spec ? [view.spec] : []);
// Call `visit(unit, type of its mark)` for every view that has a mark.
const units = (view, visit) => (view.mark ? visit(view, view.mark.type || view.mark) : children(view).forEach((child) => units(child, visit)));
// The views that have axes of their own.
const panels = (spec) => (spec.concat || spec.vconcat || spec.hconcat || [spec.spec || spec]);
// Whether each panel has colours of its own.
const apart = (spec) => Boolean(spec.concat && spec.resolve && spec.resolve.scale && spec.resolve.scale.color === "independent");
const nominal = (unit, channel) => { const part = (unit.encoding || {})[channel]; return part && part.field && part.type === "nominal" ? part : null; };

// The specification with tables row by row; a page holds them column by column, without what repeats.
function unpacked(spec) {
  for (const [name, table] of Object.entries(spec.datasets || {})) {
    const columns = Object.entries(table).map(([column, values]) => [column, values.of ? values.at.map((at) => values.of[at]) : values]);
    spec.datasets[name] = (columns.length ? columns[0][1] : []).map((_, i) => Object.fromEntries(columns.map(([column, values]) => [column, values[i]]).filter(([, value]) => value !== null)));
  }
  return spec;
}

function rowsOf(spec, unit, inherited) {
  const data = unit.data || inherited;
  return data ? data.values || spec.datasets[data.name] || [] : [];
}

// Axes that may be logarithmic: all their numbers are positive, and no mark begins at 0.
function loggable(spec, axis) {
  let able = true, any = false;
  const look = (view, inherited) => {
    const data = view.data || inherited;
    if (!view.mark) { children(view).forEach((child) => look(child, data)); return; }
    const type = view.mark.type || view.mark, parts = [axis, axis + "2"].map((name) => (view.encoding || {})[name]);
    if (!parts[0] || !parts[0].field) return;
    if (parts[0].type !== "quantitative" || ["bar", "area", "rect"].includes(type)) { able = false; return; }
    if ((parts[0].scale || {}).type === "log") any = true;
    for (const part of parts) if (part && part.field && !rowsOf(spec, view, data).every((row) => row[part.field] == null || row[part.field] > 0)) able = false;
    any = any || rowsOf(spec, view, data).length > 1;
  };
  look(spec, spec.data);
  return able && any;
}
const isLog = (spec, axis) => { let found = false; units(spec, (unit) => { const part = (unit.encoding || {})[axis]; found = found || (part && (part.scale || {}).type === "log"); }); return found; };

// Whether the names along an axis have no room side by side.
function crowded(spec, unit, panel, part, width) {
  const names = new Set(rowsOf(spec, unit, panel.data || spec.data).map((row) => String(row[part.field])));
  return [...names].reduce((sum, name) => sum + 6.5 * name.length + 8, 0) > width;
}

// The specification as it is drawn here: of this width, in these colours, without what is switched off.
function fitted(source, state, width, room) {
  let text = source;
  if (state.dark) for (const [light, other] of Object.entries(DARK)) text = text.replaceAll(`"${light}"`, `"${other}"`);
  const spec = JSON.parse(text);
  delete spec.title;
  spec.background = "transparent";
  spec.padding = 4;
  if (spec.facet && spec.facet.column && !spec.facet.row) { // panels side by side that may stand one below another
    spec.columns = new Set(rowsOf(spec, {}, spec.data).map((row) => row[spec.facet.column.field])).size;
    spec.facet = spec.facet.column;
  }
  const narrow = width < NARROW, single = !spec.concat && !spec.vconcat && !spec.hconcat && !spec.facet;
  let across = spec.concat || spec.facet ? spec.columns || (spec.concat || [1, 2]).length : spec.hconcat ? spec.hconcat.length : 1;
  if (narrow) across = 1;
  if (spec.concat || (spec.facet && !spec.facet.row)) spec.columns = across;
  for (const outer of panels(spec)) {
    const nested = Boolean(outer.facet && outer.spec), view = nested ? outer.spec : outer, inside = nested && !narrow ? outer.columns || 1 : 1;
    if (nested) outer.columns = inside;
    const [w, h] = [view.width || 460, view.height || 300], ratio = h / w, share = single ? width : Math.max(90, room / across / inside - 30 * (inside - 1));
    view.width = Math.round(share);
    view.height = Math.round(ratio > 0.85 && ratio < 1.2 ? ratio * share : Math.min(Math.max(0.85 * ratio * share, 0.85 * h), 1.35 * h));
  }
  if (single) spec.autosize = { type: "fit-x", contains: "padding" };
  panels(spec).forEach((panel, number) => units(panel, (unit, type) => {
    const encoding = unit.encoding || {};
    if (type === "line" && !unit.mark.point && !encoding.opacity) unit.mark.point = { opacity: 0, size: 60 }; // to be pointed at
    for (const channel of CHANNELS) {
      const part = nominal(unit, channel), key = apart(spec) ? `concat_${number}_${channel}` : channel, off = state.off.get(key);
      if (!part) continue;
      part.legend = null;
      if (off && off.size) {
        part.scale = { ...(part.scale || {}), ...state.scales.get(key) };
        (unit.transform = unit.transform || []).push({ filter: { not: { field: part.field, oneOf: [...off] } } });
      }
    }
    for (const axis of ["x", "y"]) {
      const part = encoding[axis];
      if (part && part.type === "quantitative" && state.log[axis] !== undefined) {
        if (state.log[axis]) part.scale = { ...(part.scale || {}), type: "log", nice: false, zero: undefined, padding: 10, ...((part.scale || {}).domain && part.scale.domain[0] <= 0 ? { domain: undefined } : {}) };
        else part.scale = { ...(part.scale || {}), type: "linear" };
      }
      if (axis === "x" && part && part.type === "nominal" && crowded(spec, unit, panel, part, (panel.facet ? panel.spec : panel).width)) part.axis = { ...(part.axis || {}), labelAngle: -30, labelOverlap: false };
      if (part && part.axis && part.axis.labelLimit) part.axis.labelLimit = Math.min(part.axis.labelLimit, Math.round(0.52 * width));
    }
  }));
  return spec;
}

// The entries of the legends: what a panel draws with several colours, dashes or shapes.
function legends(source, view) {
  const spec = JSON.parse(source);
  const found = [];
  panels(spec).forEach((panel, number) => {
    const own = [];
    units(panel, (unit, type) => {
      for (const channel of CHANNELS) {
        const part = nominal(unit, channel);
        if (!part || part.legend === null) continue;
        const name = (apart(spec) ? `concat_${number}_` : "") + channel, known = own.find((other) => other.name === name);
        if (known) { known.lines = known.lines || type === "line"; continue; }
        let scale;
        try { scale = view.scale(name); } catch { continue; }
        own.push({ name, channel, title: part.title || "", lines: type === "line" || channel === "strokeDash", scale });
      }
    });
    let title = "";
    units(panel, (unit) => { title = title || ((unit.encoding || {}).y || {}).title || ""; });
    for (const entry of own) {
      const same = found.find((other) => other.panel === number && other.title === entry.title && String(other.values) === String(entry.scale.domain()));
      if (same) { same.looks[entry.channel] = entry.scale; same.lines = same.lines || entry.lines; } else if (!found.some((other) => other.name === entry.name)) {
        found.push({ ...entry, panel: number, values: entry.scale.domain(), looks: { [entry.channel]: entry.scale }, where: apart(spec) ? title : "" });
      }
    }
  });
  // What several panels would say alike is said once, and switches all of them.
  const look = (entry) => JSON.stringify([entry.title, entry.values, Object.entries(entry.looks).map(([channel, scale]) => [channel, entry.values.map((value) => String(scale(value)))])]);
  const said = [];
  for (const entry of found) {
    const before = said.find((other) => look(other) === look(entry));
    if (before) { before.also.push(entry); before.where = ""; before.lines = before.lines || entry.lines; } else said.push({ ...entry, also: [] });
  }
  // Nor is a single series named again.
  return said.filter((entry, i) => entry.values.length > 1 || !said.slice(0, i).some((other) => other.values.includes(entry.values[0])));
}

function swatch(entry, value, plain) {
  const ink = entry.looks.color ? entry.looks.color(value) : plain, dash = entry.looks.strokeDash ? entry.looks.strokeDash(value) : [];
  const mark = entry.looks.shape ? `<path transform="translate(9 6)" d="${SHAPES[entry.looks.shape(value)] || SHAPES.circle}" fill="${ink}"/>` : "";
  const line = entry.lines ? `<path d="M0 6H18" stroke="${ink}" stroke-width="2.4" stroke-dasharray="${dash}" fill="none"/>` : mark ? "" : `<circle cx="9" cy="6" r="5" fill="${ink}"/>`;
  return `<svg width="18" height="12" viewBox="0 0 18 12" aria-hidden="true">${line}${mark}</svg>`;
}

for (const figure of document.querySelectorAll("figure.chart[data-spec]")) {
  const plain = unpacked(JSON.parse(document.getElementById(figure.dataset.spec).textContent)), source = JSON.stringify(plain);
  const drawing = figure.querySelector(".drawing"), keys = figure.querySelector(".keys");
  const state = { dark: false, off: new Map(), scales: new Map(), log: {} };
  let drawn = 0, view = null, busy = Promise.resolve();

  const show = async () => {
    state.dark = dark.matches && !printing;
    const width = drawing.clientWidth;
    if (!width) return;
    drawn = width;
    let room = width - 70, place, result;
    for (let attempt = 0; attempt < 3; attempt++) {
      place = document.createElement("div");
      const spec = fitted(source, state, width, room);
      result = await vegaEmbed(place, spec, { renderer: "svg", actions: false, ast: true, tooltip: { theme: state.dark ? "dark" : "light" } });
      const over = Number(place.querySelector("svg").getAttribute("width")) - width;
      if (!(spec.concat || spec.vconcat || spec.hconcat || spec.facet) || Math.abs(over) <= 6 || attempt === 2) break;
      room -= over;
      result.finalize();
    }
    place.querySelector("svg").setAttribute("aria-hidden", "true"); // the drawing itself has the words
    drawing.replaceChildren(place);
    drawing.style.minHeight = "";
    view = result.view;
    if (!keys.childElementCount) switches(legends(source, view)); else paintSwatches();
  };
  const draw = () => { busy = busy.then(show); return busy; };

  let paintSwatches = () => {};
  function switches(found) {
    const inks = () => getComputedStyle(figure).color;
    const looks = [];
    for (const entry of found) {
      const names = [entry, ...entry.also].flatMap((one) => Object.keys(entry.looks).map((channel) => one.name.replace(one.channel, channel)));
      for (const name of names) state.scales.set(name, { domain: entry.values, range: entry.looks[name.replace(/.*_/, "")].range() });
      const group = document.createElement("div");
      group.className = "key";
      const title = [entry.where, entry.title].filter(Boolean).join(", ");
      if (title) group.append(Object.assign(document.createElement("span"), { textContent: `${title}:` }));
      for (const value of entry.values) {
        const button = Object.assign(document.createElement("button"), { type: "button" });
        button.setAttribute("aria-pressed", "true");
        const picture = document.createElement("i");
        looks.push([picture, entry, value]);
        button.append(picture, String(value));
        button.addEventListener("click", () => {
          const on = button.getAttribute("aria-pressed") !== "true";
          button.setAttribute("aria-pressed", String(on));
          for (const name of names) {
            const off = state.off.get(name) || new Set();
            if (on) off.delete(value); else off.add(value);
            state.off.set(name, off);
          }
          draw();
        });
        group.append(button);
      }
      keys.append(group);
    }
    paintSwatches = () => { for (const [picture, entry, value] of looks) {
      const scaleNow = (channel) => { try { return view.scale(entry.name.replace(entry.channel, channel)); } catch { return entry.looks[channel]; } };
      const now = { ...entry, looks: Object.fromEntries(Object.keys(entry.looks).map((channel) => [channel, scaleNow(channel)])) };
      picture.innerHTML = swatch(now, value, inks());
    } };
    paintSwatches();
    const tools = document.createElement("div");
    tools.className = "key tools-of-figure";
    for (const axis of ["x", "y"]) {
      if (!loggable(plain, axis)) continue;
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: `log ${axis}` });
      button.setAttribute("aria-pressed", String(isLog(plain, axis)));
      button.addEventListener("click", () => {
        state.log[axis] = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(state.log[axis]));
        draw();
      });
      tools.append(button);
    }
    const save = Object.assign(document.createElement("button"), { type: "button", textContent: "PNG" });
    save.addEventListener("click", async () => {
      const link = Object.assign(document.createElement("a"), { href: await view.toImageURL("png", 2), download: `${figure.dataset.name || "figure"}.png` });
      link.click();
    });
    tools.append(save);
    keys.append(tools);
    keys.hidden = false;
  }

  drawing.style.minHeight = `${drawing.getBoundingClientRect().height}px`; // the drawing takes the picture's place without a jump
  if (!window.vegaEmbed) continue;
  draw();
  let later;
  new ResizeObserver(() => { clearTimeout(later); later = setTimeout(() => { if (Math.abs(drawing.clientWidth - drawn) > 8) draw(); }, 120); }).observe(drawing);
  dark.addEventListener("change", draw);
  addEventListener("beforeprint", () => { printing = true; draw(); });
  addEventListener("afterprint", () => { printing = false; draw(); });
}
