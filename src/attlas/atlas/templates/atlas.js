"use strict";
// The one script of all pages: search and filter, the graph under the pointer, TeX for who copies a formula.

// An explorer in an article says how high it is.
addEventListener("message", (event) => {
  for (const frame of document.querySelectorAll("iframe")) {
    if (frame.contentWindow === event.source && event.data.height > 0) frame.style.height = `${Math.ceil(event.data.height) + 2}px`;
  }
});
for (const frame of document.querySelectorAll("iframe")) frame.contentWindow.postMessage("height?", "*");

// What scrolls can be scrolled from the keyboard.
for (const part of document.querySelectorAll("pre, .scroll, .statement, .drawing, .reference p, .reference dd")) {
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

// What the letters of a formula mean: one under the pointer, all of a formula that is tapped or has the focus. The
// meanings are those of the list of letters on the page, or in the section.
const meaning = Object.assign(document.createElement("div"), { id: "meaning", className: "meaning", hidden: true });
meaning.setAttribute("role", "tooltip");
const plainText = (part) => part.textContent.replace(/\s/g, "");
const lists = new Map();
function lettersFor(math) {
  const list = [math.closest("section"), math.closest("main")].map((part) => part && part.querySelector("dl.symbols")).find((found) => found);
  if (list && !lists.has(list)) lists.set(list, new Map([...list.children].map((entry) => [plainText(entry.querySelector("dt")), entry])));
  return lists.get(list) || new Map();
}
// The entry of an identifier, with its index or star if that has one of its own.
function entryOf(letter, known) {
  const around = letter.parentElement;
  return (/^m(sub|sup|subsup|over)$/.test(around.localName) && around.firstElementChild === letter && known.get(plainText(around))) || known.get(plainText(letter));
}
function explain(math, letters) {
  const known = lettersFor(math), found = new Set(letters.map((letter) => entryOf(letter, known)).filter((entry) => entry));
  meaning.hidden = !found.size;
  if (!found.size) return;
  meaning.replaceChildren(...[...found].map((entry) => {
    const row = document.createElement("div"), [letter, words] = entry.children;
    row.append(...[...letter.childNodes].map((part) => part.cloneNode(true)), " ", ...[...words.childNodes].map((part) => part.cloneNode(true)));
    return row;
  }));
  if (!meaning.isConnected) document.querySelector("main").append(meaning);
  const box = (letters.length === 1 ? letters[0] : math).getBoundingClientRect(), below = box.bottom + meaning.offsetHeight + 8 < innerHeight;
  meaning.style.left = `${Math.max(8, Math.min(box.left, innerWidth - meaning.offsetWidth - 8))}px`;
  meaning.style.top = `${below ? box.bottom + 6 : box.top - meaning.offsetHeight - 6}px`;
}
if (document.querySelector("dl.symbols")) {
  const formula = (part) => { const math = part instanceof Element && part.closest("math"); return math && !math.closest("dl.symbols, .meaning") ? math : null; };
  const all = (math) => [...math.querySelectorAll("mi")];
  const hide = () => { meaning.hidden = true; };
  document.addEventListener("pointerover", (event) => {
    const math = formula(event.target), letter = math && event.target.closest("mi");
    if (event.pointerType === "touch") return;
    if (letter) explain(math, [letter]); else if (!document.activeElement.matches(".formula")) hide();
  });
  document.addEventListener("click", (event) => { const math = formula(event.target); if (math) explain(math, all(math)); else hide(); });
  document.addEventListener("focusin", (event) => {
    const math = event.target.matches(".formula") && event.target.querySelector("math");
    if (math) { explain(math, all(math)); event.target.setAttribute("aria-describedby", "meaning"); } else hide();
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, { passive: true });
}

// Search and filters; what they are set to stands in the address, as in #search=softmax&kind=training.
const search = document.getElementById("search");
if (search) {
  const rows = [...document.querySelectorAll("tr[data-text]")].map((row) => ({ row, text: finding.text(row.dataset.text) }));
  const choices = [...document.querySelectorAll("select[data-filter]")];
  const told = document.getElementById("found"), nothing = document.getElementById("nothing"), list = document.getElementById("pages-found"), all = document.getElementById("all");
  const thing = told.dataset.of || "claim";
  const source = document.getElementById("pages");
  const pages = (source ? JSON.parse(source.textContent) : []).map((page) => ({ ...page, text: finding.text(`${page.title} ${page.words} ${page.kind}`) }));
  const filter = () => {
    const query = finding.asked(search.value);
    const open = rows.filter(({ row }) => choices.every((choice) => !choice.value || (row.dataset[choice.dataset.filter] || "").split("|").includes(choice.value)));
    const scored = open.map((entry) => ({ ...entry, ...finding.score(query, entry.text) }));
    const least = Math.min(...scored.map((entry) => entry.missing), query.length); // all words if some claim has all, else as many as one has
    const fits = new Set(scored.filter((entry) => !query.length || (entry.missing === least && entry.total > 0)).map((entry) => entry.row));
    for (const { row } of rows) row.hidden = !fits.has(row);
    const order = new Map(scored.map((entry) => [entry.row, entry.total]));
    for (const part of document.querySelectorAll("section[data-map], [data-module]")) {
      const body = part.querySelector("tbody");
      part.hidden = !part.querySelector("tr[data-text]:not([hidden])");
      if (body && part.matches("section[data-map]")) body.append(...rows.map(({ row }) => row).filter((row) => body.contains(row)).sort((a, b) => (order.get(b) || 0) - (order.get(a) || 0)));
    }
    const near = query.length ? pages.map((page) => ({ page, ...finding.score(query, page.text) })).filter(({ missing, total }) => missing === 0 && total > 0).sort((a, b) => b.total - a.total).slice(0, 8) : [];
    if (list) {
      list.hidden = !near.length;
      list.replaceChildren(...near.map(({ page }) => {
        const item = document.createElement("li"), link = Object.assign(document.createElement("a"), { href: page.path, textContent: page.title });
        item.append(link, " ", Object.assign(document.createElement("span"), { className: "meta", textContent: page.kind }));
        return item;
      }));
    }
    const narrowed = query.length > 0 || choices.some((choice) => choice.value);
    told.textContent = fits.size === rows.length ? `${fits.size} ${thing}${fits.size === 1 ? "" : "s"}` : `${fits.size} of ${rows.length} ${thing}s${least && fits.size ? `, with all but ${least} of the words` : ""}`;
    if (nothing) nothing.hidden = fits.size > 0 || near.length > 0;
    if (all) all.hidden = !narrowed;
  };
  const remember = () => {
    const set = [["search", search.value.trim()], ...choices.map((choice) => [choice.dataset.filter, choice.value])].filter(([, value]) => value);
    const address = new URLSearchParams(set).toString();
    history.replaceState(null, "", address ? `#${address}` : location.href.split("#")[0]);
  };
  const known = ["search", ...choices.map((choice) => choice.dataset.filter)];
  const restore = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (![...asked.keys()].some((name) => known.includes(name))) return;
    search.value = asked.get("search") || "";
    for (const choice of choices) choice.value = asked.get(choice.dataset.filter) || "";
    filter();
    (document.getElementById("catalogue") || search).scrollIntoView();
  };
  let later;
  const changed = () => { filter(); clearTimeout(later); later = setTimeout(remember, 300); };
  document.getElementById("tools").hidden = false;
  const finder = document.getElementById("finder");
  if (finder) {
    finder.hidden = false;
    finder.addEventListener("submit", (event) => { event.preventDefault(); document.getElementById("catalogue").scrollIntoView(); });
  }
  for (const control of [search, ...choices]) control.addEventListener("input", changed);
  if (all) all.addEventListener("click", () => { search.value = ""; for (const choice of choices) choice.value = ""; changed(); search.focus({ preventScroll: true }); });
  addEventListener("hashchange", restore);
  filter();
  restore();
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
