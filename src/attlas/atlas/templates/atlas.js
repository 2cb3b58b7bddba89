"use strict";
// The one script of all pages: figures, search and filter, the graph under the pointer, TeX for who copies a formula.

for (const figure of document.querySelectorAll("figure.chart[data-spec]")) {
  const size = figure.getBoundingClientRect();
  figure.style.minHeight = size.height + "px"; // the drawing in its place takes over without a jump
  const spec = JSON.parse(document.getElementById(figure.dataset.spec).textContent);
  const draw = () => {
    const place = document.createElement("div");
    vegaEmbed(place, spec, { renderer: "svg", actions: false }).then(() => {
      figure.replaceChildren(place);
      const svg = figure.querySelector("svg");
      if (svg) svg.setAttribute("aria-hidden", "true"); // the figure itself has the words
    });
  };
  if (window.vegaEmbed) draw();
}

// An explorer in an article says how high it is.
addEventListener("message", (event) => {
  for (const frame of document.querySelectorAll("iframe")) {
    if (frame.contentWindow === event.source && event.data.height > 0) frame.style.height = `${Math.ceil(event.data.height) + 2}px`;
  }
});

// What scrolls can be scrolled from the keyboard.
for (const part of document.querySelectorAll("pre, .scroll, .statement, figure.chart, .reference p, .reference dd")) {
  if (part.scrollWidth > part.clientWidth && !part.hasAttribute("tabindex")) part.tabIndex = 0;
}

document.addEventListener("copy", (event) => {
  const selection = window.getSelection();
  if (!selection.rangeCount || !event.clipboardData) return;
  const part = selection.getRangeAt(0).cloneContents();
  const around = selection.getRangeAt(0).commonAncestorContainer;
  const inside = (around.nodeType === 1 ? around : around.parentElement).closest("math");
  if (inside) {
    event.clipboardData.setData("text/plain", "$" + inside.getAttribute("alttext") + "$");
    event.preventDefault();
    return;
  }
  const formulas = part.querySelectorAll("math[alttext]");
  if (!formulas.length) return;
  for (const math of formulas) math.replaceWith("$" + math.getAttribute("alttext") + "$");
  for (const block of part.querySelectorAll("p, li, tr, h1, h2, h3, div")) block.append("\n");
  event.clipboardData.setData("text/plain", part.textContent.replace(/\n{3,}/g, "\n\n").trim());
  event.preventDefault();
});

const search = document.getElementById("search");
if (search) {
  const rows = [...document.querySelectorAll("tr[data-text]")];
  const choices = [...document.querySelectorAll("select[data-filter]")];
  const told = document.getElementById("found");
  const thing = told.dataset.of || "claim";
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const fits = words.every((word) => row.dataset.text.includes(word)) &&
        choices.every((choice) => !choice.value || row.dataset[choice.dataset.filter].split("|").includes(choice.value));
      row.hidden = !fits;
      count += fits;
    }
    for (const part of document.querySelectorAll("[data-map]")) part.hidden = !part.querySelector("tr[data-text]:not([hidden])");
    told.textContent = count === rows.length ? `${count} ${thing}${count === 1 ? "" : "s"}` : `${count} of ${rows.length} ${thing}s`;
  };
  document.getElementById("tools").hidden = false;
  for (const control of [search, ...choices]) control.addEventListener("input", filter);
  filter();
}

for (const graph of document.querySelectorAll("svg.graph")) {
  const edges = [...graph.querySelectorAll(".edge")];
  const nodes = new Map([...graph.querySelectorAll("a[data-id]")].map((node) => [node.dataset.id, node]));
  const reach = (id, from, to, found) => {
    for (const edge of edges) {
      if (edge.dataset[from] === id && !found.has(edge)) {
        found.add(edge);
        reach(edge.dataset[to], from, to, found);
      }
    }
    return found;
  };
  const light = (id) => {
    const on = new Set([...reach(id, "to", "from", new Set()), ...reach(id, "from", "to", new Set())]);
    const names = new Set([id, ...[...on].flatMap((edge) => [edge.dataset.from, edge.dataset.to])]);
    graph.classList.add("lit");
    for (const edge of edges) edge.classList.toggle("on", on.has(edge));
    for (const [name, node] of nodes) node.classList.toggle("on", names.has(name));
  };
  for (const [id, node] of nodes) {
    for (const name of ["pointerenter", "focus"]) node.addEventListener(name, () => light(id));
    for (const name of ["pointerleave", "blur"]) node.addEventListener(name, () => graph.classList.remove("lit"));
  }
}
