// What the explorers share: controls, canvases, axes. A map's script adds its formulas to `attlas`.
"use strict";

const attlas = {};

const explorer = (() => {
  const $ = id => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let printing = false;
  // Okabe and Ito's colours, which colour-blind readers can tell apart; lighter on a dark ground.
  const LIGHT = { ink: "#1c1c1a", quiet: "#66645e", line: "#dad8cf", paper: "#fdfdfb", a: "#0072b2", b: "#c04f00", c: "#00805c", d: "#8a8880" };
  const DARK = { ink: "#e9e7e1", quiet: "#a5a29a", line: "#403f37", paper: "#191917", a: "#5cb8ee", b: "#ff9a5c", c: "#3fcf9f", d: "#8f8c84" };
  const palette = () => dark.matches && !printing ? DARK : LIGHT;
  const FONT = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';

  const drawings = [];
  // A canvas whose drawing is `draw(pen, width, height, colours)`, sharp on every screen and drawn again when its size or the colours change.
  function picture(id, draw) {
    const canvas = $(id);
    const paint = () => {
      const { clientWidth: width, clientHeight: height } = canvas, ratio = Math.max(1, window.devicePixelRatio || 1);
      if (!width || !height) return;
      if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
      if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
      const pen = canvas.getContext("2d");
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      pen.font = `12px ${FONT}`;
      pen.lineJoin = pen.lineCap = "round";
      draw(pen, width, height, palette());
    };
    new ResizeObserver(paint).observe(canvas);
    drawings.push(paint);
    return paint;
  }
  const repaint = () => drawings.forEach(paint => paint());
  dark.addEventListener("change", repaint);
  addEventListener("beforeprint", () => { printing = true; repaint(); });
  addEventListener("afterprint", () => { printing = false; repaint(); });

  const superscript = n => String(n).replace(/[-\d]/g, c => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
  // A number as a reader writes it.
  function show(x, digits = 3) {
    if (!Number.isFinite(x)) return x > 0 ? "∞" : x < 0 ? "−∞" : "–";
    if (x === 0) return "0";
    if (Number.isInteger(x)) return x.toLocaleString("en-GB").replace("-", "−");
    const power = Math.floor(Math.log10(Math.abs(x)));
    if (power < -3 || power > 5) return `${(x / 10 ** power).toFixed(1).replace("-", "−")} · 10${superscript(power)}`;
    return String(Number(x.toPrecision(digits))).replace("-", "−");
  }

  // The value of a control: that of a list which it points into, a number, a word, or whether it is ticked.
  function value(id) {
    const control = $(id);
    if (control.type === "checkbox") return control.checked;
    if (control.dataset.values) return JSON.parse(control.dataset.values)[control.value];
    return control.type === "range" ? Number(control.value) : control.value;
  }
  function set(id, wanted) {
    const control = $(id), list = control.dataset.values && JSON.parse(control.dataset.values).map(String);
    if (control.type === "checkbox") control.checked = String(wanted) === "true";
    else control.value = list ? list.indexOf(String(wanted)) : wanted;
  }
  // Controls that are not as the page has them stand in its address, as in #steps=100&tokens=48.
  const controls = () => [...document.querySelectorAll(".controls input, .controls select")];
  function usual(control) {
    if (control.type === "checkbox") return String(control.defaultChecked);
    if (control.options) return ([...control.options].find(option => option.defaultSelected) || control.options[0]).value;
    return control.dataset.values ? String(JSON.parse(control.dataset.values)[control.defaultValue]) : control.defaultValue;
  }
  function possible(control, text) {
    if (control.options) return [...control.options].some(option => option.value === text);
    if (control.dataset.values) return JSON.parse(control.dataset.values).map(String).includes(text);
    return control.type !== "range" || Number.isFinite(parseFloat(text));
  }
  function restore(address) {
    const asked = new URLSearchParams(address.replace(/^#/, ""));
    for (const control of controls()) {
      const text = asked.get(control.id);
      set(control.id, text !== null && possible(control, text) ? text : usual(control));
    }
  }
  function remember() {
    const moved = controls().filter(control => String(value(control.id)) !== usual(control));
    const address = new URLSearchParams(moved.map(control => [control.id, value(control.id)])).toString();
    history.replaceState(null, "", address ? `#${address}` : location.href.split("#")[0]);
  }
  function label(control) {
    const shown = control.dataset.unit === "degrees" ? `${control.value.replace("-", "−")}°` : show(value(control.id));
    control.setAttribute("aria-valuetext", shown);
    $(`${control.id}-shown`).textContent = shown;
  }
  // Call `changed` whenever a control moves, at most once a frame.
  function watch(changed) {
    let waiting = false, later;
    const soon = () => {
      clearTimeout(later);
      later = setTimeout(remember, 300); // browsers take some hundred changes of the address a minute
      document.querySelectorAll("input[type=range]").forEach(label);
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; changed(); });
    };
    document.querySelector(".controls").addEventListener("input", soon);
    const renew = address => { restore(address); soon(); };
    $("reset").addEventListener("click", () => renew(""));
    // The address that was asked for: `remember` may have written another since.
    addEventListener("hashchange", event => renew(new URL(event.newURL).hash));
    renew(location.hash);
    return soon;
  }
  const tell = facts => { for (const [id, text] of Object.entries(facts)) $(id).textContent = text; };

  // Axes in the box [left, top, right, bottom] with `x` and `y` as {from, to, ticks, title, log, text}: the two maps to pixels.
  function axes(pen, colours, [left, top, right, bottom], x, y) {
    const map = (axis, from, to) => {
      const f = axis.log ? Math.log10 : v => v, low = f(axis.from), high = f(axis.to);
      return v => from + (f(v) - low) / (high - low) * (to - from);
    };
    const X = map(x, left, right), Y = map(y, bottom, top);
    pen.strokeStyle = colours.line;
    pen.fillStyle = colours.quiet;
    pen.lineWidth = 1;
    pen.textBaseline = "top";
    pen.textAlign = "center";
    for (const tick of x.ticks) { line(pen, [[X(tick), top], [X(tick), bottom]]); pen.fillText((x.text || show)(tick), X(tick), bottom + 6); }
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const tick of y.ticks) { line(pen, [[left, Y(tick)], [right, Y(tick)]]); pen.fillText((y.text || show)(tick), left - 9, Y(tick)); }
    pen.textAlign = "right";
    pen.textBaseline = "bottom";
    pen.fillText(x.title, right, bottom + 34);
    pen.textAlign = "left";
    pen.fillText(y.title, left, top - 8);
    return [X, Y];
  }
  function line(pen, points) {
    pen.beginPath();
    points.forEach(([x, y], i) => i ? pen.lineTo(x, y) : pen.moveTo(x, y));
    pen.stroke();
  }
  function dot(pen, x, y, radius) { pen.beginPath(); pen.arc(x, y, radius, 0, 2 * Math.PI); pen.fill(); }
  function clipped(pen, [left, top, right, bottom], draw) {
    pen.save();
    pen.beginPath();
    pen.rect(left, top, right - left, bottom - top);
    pen.clip();
    draw();
    pen.restore();
  }
  // Call `moved(x, y)` with the place of the pointer in the canvas, when it is pressed and, with `drag`, while it is held.
  function pointer(id, drag, moved) {
    const canvas = $(id), at = event => { const box = canvas.getBoundingClientRect(); moved(event.clientX - box.left, event.clientY - box.top); };
    canvas.addEventListener("pointerdown", event => { if (drag) canvas.setPointerCapture(event.pointerId); at(event); });
    if (drag) canvas.addEventListener("pointermove", event => { if (event.buttons) at(event); });
  }
  // Within an article: the pictures and controls alone, at their full height.
  if (parent !== window) {
    document.documentElement.classList.add("embedded");
    document.querySelectorAll("a").forEach(link => { link.target = "_top"; });
    const tellHeight = () => parent.postMessage({ height: document.body.offsetHeight }, "*");
    new ResizeObserver(tellHeight).observe(document.body);
    addEventListener("message", tellHeight); // the article asks, if its script was not there yet
  }
  const data = () => JSON.parse($("data").textContent);

  return { $, picture, show, superscript, value, set, label, watch, tell, axes, line, dot, clipped, pointer, data };
})();
