// The explorers. The first part is mathematics, each function the twin of one in Python (a test compares their numbers); the second draws.
"use strict";

const attlas = (() => {
  // --- Gaussian expectations: attlas.gaussian ---------------------------------------------------------------------
  const ROOT_PI = Math.sqrt(Math.PI);
  // Gauss-Legendre on [0, 1] with twelve nodes, by Newton's method on the polynomial.
  const RULE = Array.from({ length: 12 }, (_, i) => {
    let x = Math.cos(Math.PI * (i + 0.75) / 12.5), slope = 1;
    for (let round = 0; round < 8; round++) {
      let before = 1, here = x;
      for (let j = 2; j <= 12; j++) [before, here] = [here, ((2 * j - 1) * x * here - (j - 1) * before) / j];
      slope = 12 * (x * here - before) / (x * x - 1);
      x -= here / slope;
    }
    return [(1 + x) / 2, 1 / ((1 - x * x) * slope * slope)];
  });
  const NODES = RULE.map(pair => pair[0]), WEIGHTS = RULE.map(pair => pair[1]);

  function erf(x) {
    const size = Math.abs(x), bell = Math.exp(-x * x) / ROOT_PI;
    if (size > 6) return Math.sign(x);
    if (size < 2.5) { // a series of positive terms
      let term = 2 * x * bell, sum = term;
      for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= 2 * x * x / (2 * n + 1);
      return sum;
    }
    let fraction = 0; // of erfc
    for (let n = 60; n > 0; n--) fraction = n / 2 / (size + fraction);
    return Math.sign(x) * (1 - bell / (size + fraction));
  }
  // erf and three derivatives
  function erfs(x) {
    const first = 2 / ROOT_PI * Math.exp(-x * x);
    return [erf(x), first, -2 * x * first, (4 * x * x - 2) * first];
  }
  // E erf(t + sG)^2
  function zeta(t, spread) {
    const slope = 1 / Math.sqrt(1 + 4 * spread * spread), height = t * t / (1 + 2 * spread * spread);
    let sum = 0;
    for (let i = 0; i < 12; i++) {
      const width = 1 + (slope * NODES[i]) ** 2;
      sum += WEIGHTS[i] * Math.exp(-height * width) / width;
    }
    return 1 - 4 / Math.PI * slope * sum;
  }
  function zetas(t, spread) {
    const d = Math.sqrt(1 + 2 * spread * spread), e = Math.sqrt(1 + 4 * spread * spread);
    const [, f1, f2, f3] = erfs(t / d), [g0, g1, g2] = erfs(t / (d * e));
    return leibniz(d, e, f1, f2, f3, g0, g1, g2);
  }
  const leibniz = (d, e, f1, f2, f3, g0, g1, g2) =>
    [2 / d * f1 * g0, 2 / d ** 2 * (f2 * g0 + f1 * g1 / e), 2 / d ** 3 * (f3 * g0 + 2 * f2 * g1 / e + f1 * g2 / e ** 2)];

  // --- single-location regression: a task is {lam, dim, length, gamma}, a head its overlaps [kappa, nu, theta, eta, rho] --------
  // What does not change along a run, and what depends on kappa alone.
  function constants({ lam, dim, length, gamma }) {
    const mean = 2 * lam / Math.sqrt(Math.PI * (1 + 2 * lam * lam));
    return { lam, dim, length, gamma, m: Math.sqrt(dim / 2), g2: gamma * gamma, s: lam * gamma * gamma, mean, square: 2 * mean * mean / Math.sqrt(1 + 4 * lam * lam) };
  }
  function gates(c, kappa) {
    if (c.table) return read(c.table, kappa);
    const t = c.lam * c.m * kappa, spread = c.lam * c.gamma, d = Math.sqrt(1 + 2 * spread * spread), e = Math.sqrt(1 + 4 * spread * spread);
    const u = t / d, [f0, f1, f2, f3] = erfs(u), [g0, g1, g2] = erfs(u / e);
    return [f0, f1 / d, f2 / d ** 2, f3 / d ** 3, zeta(t, spread), ...leibniz(d, e, f1, f2, f3, g0, g1, g2)];
  }
  // The same constants with the functions of kappa in a table, for pictures that need many millions of steps.
  const CELLS = 8192;
  function tabulated(c) {
    const rows = Array.from({ length: CELLS + 1 }, (_, i) => gates(c, 2 * i / CELLS - 1));
    return { ...c, table: rows[0].map((_, j) => Float64Array.from(rows, row => row[j])) };
  }
  function read(table, kappa) {
    const place = Math.min(Math.max((kappa + 1) / 2 * CELLS, 0), CELLS - 1e-9), i = Math.floor(place), share = place - i;
    const at = column => column[i] + share * (column[i + 1] - column[i]);
    return [at(table[0]), at(table[1]), at(table[2]), at(table[3]), at(table[4]), at(table[5]), at(table[6]), at(table[7])];
  }
  function risk(c, [kappa, nu, theta, eta, rho]) {
    const [e0, e1, e2, , z, z1, z2] = gates(c, kappa), mt = c.m * theta, sr = c.s * rho, others = (c.length - 1) * c.mean;
    return c.g2 - 2 * c.g2 * (nu * e0 + c.lam * eta * (mt * e1 + sr * e2)) + (mt * mt + c.g2) * z + 2 * sr * mt * z1 + sr * sr * z2
      + (c.length - 1) * (zeta(0, c.lam) + c.square * rho * rho) + others * rho * (2 * (mt * e0 + sr * e1) + (c.length - 2) * c.mean * rho);
  }
  function gradient(c, [kappa, nu, theta, eta, rho]) {
    const [e0, e1, e2, e3, z, z1, z2, z3] = gates(c, kappa), mt = c.m * theta, s = c.s, others = (c.length - 1) * c.mean;
    return [
      c.lam * c.m * (-2 * c.g2 * (nu * e1 + c.lam * eta * (mt * e2 + s * rho * e3)) + (mt * mt + c.g2) * z1 + 2 * s * mt * rho * z2
        + (s * rho) ** 2 * z3 + 2 * others * rho * (mt * e1 + s * rho * e2)),
      -2 * c.g2 * e0,
      2 * c.m * (-s * eta * e1 + mt * z + s * rho * z1 + others * rho * e0),
      -2 * s * (mt * e1 + s * rho * e2),
      2 * (-s * s * eta * e2 + s * mt * z1 + s * s * rho * z2 + rho * ((c.length - 1) * c.square + (c.length - 2) * others * c.mean)
        + others * (mt * e0 + 2 * s * rho * e1)),
    ];
  }
  // Products of the tangential gradients of k and v with the stars, with v and k, and with each other.
  function tangents(c, x) {
    const [kappa, nu, theta, eta, rho] = x, [a, b, t, e, f] = gradient(c, x);
    const k = kappa * a + eta * e + rho * f, v = nu * b + theta * t + rho * f;
    const kk = a + f * theta - k * kappa, kv = e + f * nu - k * eta, kOther = a * theta + e * nu + f - k * rho;
    const vk = t + f * kappa - v * theta, vv = b + f * eta - v * nu, vOther = b * eta + t * kappa + f - v * rho;
    return { kk, kv, kOther, vk, vv, vOther, k2: a * kk + e * kv + f * kOther, v2: b * vv + t * vk + f * vOther, both: b * kv + t * kk - v * kOther };
  }
  function velocity(c, x) {
    const u = tangents(c, x);
    return [-u.kk, -u.vv, -u.vk, -u.kv, -(u.kOther + u.vOther)];
  }
  // One step of projected descent of size alpha.
  function step(c, x, alpha) {
    const [kappa, nu, theta, eta, rho] = x, u = tangents(c, x);
    const k = Math.sqrt(1 + alpha * alpha * u.k2), v = Math.sqrt(1 + alpha * alpha * u.v2);
    return [(kappa - alpha * u.kk) / k, (nu - alpha * u.vv) / v, (theta - alpha * u.vk) / v, (eta - alpha * u.kv) / k,
      (rho - alpha * (u.kOther + u.vOther) + alpha * alpha * u.both) / (k * v)];
  }
  // A step size that does not flip near the oracle: one over the trace of the flow's derivative across the manifold and along it there, or more.
  function safeStep(c) {
    const [e0, e1, e2, , z, z1, z2] = gates(c, 1), [along, value] = gradient(c, [1, 1, 0, 0, 0]), others = (c.length - 1) * c.mean;
    const cross = 2 * c.s * c.m * z1 + 2 * others * c.m * e0;
    const own = 2 * c.s ** 2 * z2 + 2 * (c.length - 1) * (c.square + (c.length - 2) * c.mean ** 2) + 4 * others * c.s * e1;
    return 1 / (2 * c.m ** 2 * z + 2 * cross + 4 * c.s ** 2 * Math.abs(e2) + 2 * own + 4 * Math.abs(along) + 4 * Math.abs(value));
  }
  function swapped(c) {
    const s = c.lam * c.gamma;
    return [0, 0, Math.min(1, 2 * c.gamma * s / (ROOT_PI * Math.sqrt(1 + 2 * s * s) * c.m * zeta(0, s))), 1, 0];
  }
  // The sharpness beyond which the manifold repels at the oracle; none where the dimension is too small for one.
  function criticalLam(c) {
    const room = c.dim - 2 * c.g2 * (c.length - 2);
    return room <= 0 ? Infinity : Math.sqrt((2 * (c.dim + 2 * c.g2) / room) ** 2 - 1) / 2;
  }
  const linearRisk = c => c.g2 - c.g2 ** 2 / (c.g2 + c.length - 1);
  // Overlaps of heads at (kappa, nu) of which a share `off` of the rest lies along the other's star: 0 is the manifold.
  function start(kappa, nu, off) {
    const theta = off * Math.sqrt(1 - nu * nu), eta = off * Math.sqrt(1 - kappa * kappa);
    return [kappa, nu, theta, eta, kappa * theta + nu * eta];
  }
  function ending([kappa, nu, theta, eta], reach = 0.9) {
    if (kappa * nu > 0 && Math.abs(kappa) > reach && Math.abs(nu) > reach) return kappa > 0 ? "oracle" : "mirror";
    return theta * eta > 0 && Math.abs(eta) > reach && Math.abs(nu) < 1 - reach ? "swapped" : "neither";
  }
  // The stable curve of the saddle at 0 on the manifold, from one corner to the other: the boundary of the two basins.
  function boundary(c) {
    const s2 = (c.lam * c.gamma) ** 2, d2 = 1 + 2 * s2, cross = 4 * c.g2 * c.lam * c.m / Math.sqrt(Math.PI * d2);
    const own = 8 * c.g2 * (c.lam * c.m) ** 2 / (Math.PI * d2 * Math.sqrt(1 + 4 * s2)), rate = (own + Math.sqrt(own * own + 4 * cross * cross)) / 2;
    const norm = Math.hypot(rate, cross), half = [[0, 0]];
    let x = [rate / norm * 1e-3, -cross / norm * 1e-3];
    const back = ([kappa, nu]) => { // unit speed against the flow
      const v = velocity(c, [kappa, nu, 0, 0, 0]), size = Math.hypot(v[0], v[1]) || 1;
      return [-v[0] / size, -v[1] / size];
    };
    for (let i = 0; i < 400 && Math.max(Math.abs(x[0]), Math.abs(x[1])) < 0.999; i++) {
      half.push(x);
      const a = back(x), b = back([x[0] + 0.005 * a[0], x[1] + 0.005 * a[1]]);
      x = [Math.max(-1, Math.min(1, x[0] + 0.01 * b[0])), Math.max(-1, Math.min(1, x[1] + 0.01 * b[1]))];
    }
    half.push([1, -1]);
    return [...half.slice(1).reverse().map(([kappa, nu]) => [kappa, nu]), ...half.map(([kappa, nu]) => [-kappa, -nu])];
  }

  // --- attention as an estimator, on the circle: keys and queries are angles -----------------------------------------
  // The kernel of softmax attention, scaled to 1 at equal angles.
  const kernel = (a, b, temperature) => Math.exp((Math.cos(a - b) - 1) / temperature);
  function softmaxWeights(query, keys, temperature) {
    const powers = keys.map(key => kernel(query, key, temperature)), total = powers.reduce((x, y) => x + y, 0);
    return powers.map(power => power / total);
  }
  // The lower factor of the Gram matrix and the ridge, rows of growing length.
  function factor(keys, temperature, ridge) {
    const rows = [];
    for (let i = 0; i < keys.length; i++) {
      const row = new Float64Array(i + 1);
      for (let j = 0; j <= i; j++) {
        let sum = kernel(keys[i], keys[j], temperature) + (i === j ? ridge : 0);
        const other = j === i ? row : rows[j];
        for (let k = 0; k < j; k++) sum -= row[k] * other[k];
        row[j] = j === i ? Math.sqrt(sum) : sum / other[j];
      }
      rows.push(row);
    }
    return rows;
  }
  function solve(rows, right) {
    const x = Float64Array.from(right), n = rows.length;
    for (let i = 0; i < n; i++) { for (let j = 0; j < i; j++) x[i] -= rows[i][j] * x[j]; x[i] /= rows[i][i]; }
    for (let i = n - 1; i >= 0; i--) { x[i] /= rows[i][i]; for (let j = 0; j < i; j++) x[j] -= rows[i][j] * x[i]; }
    return Array.from(x);
  }
  const cmeWeights = (query, keys, temperature, ridge) =>
    solve(factor(keys, temperature, ridge), keys.map(key => kernel(query, key, temperature)));
  const mix = (weights, values) => weights.reduce((sum, weight, i) => sum + weight * values[i], 0);

  // --- the sparse head: T places, s of them relevant, sharpness c, "at least `needed` ones" ---------------------------
  const needed = (name, s) => ({ and: s, or: 1, majority: Math.floor(s / 2) + 1 })[name];
  function head(T, s, c, name) {
    const each = c / (s * c + 1), leak = 1 / (s * c + 1), threshold = each * (needed(name, s) - 1) + (each + leak) / 2;
    const beta = Math.log(c * (T - s));
    return { each, leak, other: leak / (T - s), threshold, beta, margin: (each - leak) / 2, scoreNorm: Math.sqrt(2 * s) * Math.abs(beta),
      valueNorm: Math.sqrt(2 * (threshold ** 2 + (1 - threshold) ** 2)) };
  }

  return { erf, zeta, zetas, constants, tabulated, risk, gradient, velocity, step, safeStep, swapped, criticalLam, linearRisk, start, ending, boundary,
    kernel, softmaxWeights, factor, solve, cmeWeights, mix, needed, head };
})();

// --- what the pages share: controls, canvases, axes --------------------------------------------------------------------
(() => {
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
    const control = $(id), list = control.dataset.values && JSON.parse(control.dataset.values);
    control.value = list ? list.indexOf(wanted) : wanted;
  }
  function label(control) {
    const shown = control.dataset.unit === "degrees" ? `${control.value.replace("-", "−")}°` : show(value(control.id));
    control.setAttribute("aria-valuetext", shown);
    $(`${control.id}-shown`).textContent = shown;
  }
  // Call `changed` whenever a control moves, at most once a frame.
  function watch(changed) {
    let waiting = false;
    const soon = () => {
      document.querySelectorAll("input[type=range]").forEach(label);
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; changed(); });
    };
    document.querySelector(".controls").addEventListener("input", soon);
    soon();
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
  const data = () => JSON.parse($("data").textContent);

  // --- where descent goes ---------------------------------------------------------------------------------------------
  function portrait() {
    const TIME = 40, MOST = 40000, LEAST = 4096, SIDE = 64; // with a large step the time is over before an end is in sight
    const COLOUR = { oracle: "a", mirror: "c", swapped: "b", neither: "d" };
    let c, alpha, path, ends, edge, run = 0, box, maps;

    const field = picture("field", (pen, width, height, colours) => {
      box = [44, 26, width - 18, height - 44];
      const unit = { from: -1, to: 1, ticks: [-1, -0.5, 0, 0.5, 1] };
      maps = axes(pen, colours, box, { ...unit, title: "κ = ⟨k, k*⟩" }, { ...unit, title: "ν = ⟨v, v*⟩" });
      if (!c) return;
      const [X, Y] = maps;
      clipped(pen, box, () => basins(pen, X, Y, colours));
      arrows(pen, X, Y, colours);
      points(pen, X, Y, colours);
      pen.strokeStyle = colours.paper;
      pen.lineWidth = 5;
      line(pen, path.map(p => [X(p.x[0]), Y(p.x[1])]));
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2.25;
      line(pen, path.map(p => [X(p.x[0]), Y(p.x[1])]));
      const first = path[0].x, last = path[path.length - 1].x;
      pen.fillStyle = colours.ink;
      dot(pen, X(last[0]), Y(last[1]), 4);
      dot(pen, X(first[0]), Y(first[1]), 7);
      pen.fillStyle = colours.paper;
      dot(pen, X(first[0]), Y(first[1]), 4);
    });
    function basins(pen, X, Y, colours) {
      pen.globalAlpha = 0.2;
      if (edge) { // on the manifold the boundary is a curve
        for (const [corner, name] of [[1, "oracle"], [-1, "mirror"]]) {
          pen.fillStyle = colours[COLOUR[name]];
          pen.beginPath();
          edge.forEach(([kappa, nu]) => pen.lineTo(X(kappa), Y(nu)));
          pen.lineTo(X(corner), Y(corner));
          pen.fill();
        }
        pen.globalAlpha = 1;
        pen.strokeStyle = colours.ink;
        pen.lineWidth = 1.25;
        pen.setLineDash([6, 4]);
        line(pen, edge.map(([kappa, nu]) => [X(kappa), Y(nu)]));
        pen.setLineDash([]);
      } else ends.forEach((row, i) => row.forEach((end, j) => {
        const at = k => 2 * k / ends.length - 1, [left, right, low, high] = [X(at(i)), X(at(i + 1)), Y(at(j)), Y(at(j + 1))].map(Math.round);
        pen.fillStyle = colours[COLOUR[end]];
        if (end) pen.fillRect(left, high, right - left, low - high);
      }));
      pen.globalAlpha = 1;
    }
    function arrows(pen, X, Y, colours) {
      const count = X(1) - X(-1) < 420 ? 13 : 19, off = value("off"), found = [];
      for (let i = 0; i < count; i++) for (let j = 0; j < count; j++) {
        const kappa = (2 * i + 1) / count - 1, nu = (2 * j + 1) / count - 1, v = attlas.velocity(c, attlas.start(kappa, nu, off));
        found.push([X(kappa), Y(nu), v[0], -v[1], Math.hypot(v[0], v[1])]);
      }
      const most = Math.max(...found.map(arrow => arrow[4]));
      pen.strokeStyle = colours.quiet;
      for (const [x, y, dx, dy, size] of found) {
        if (!size) continue;
        const share = Math.pow(size / most, 0.25), reach = 0.42 * (X(1) - X(-1)) / count * share, ux = dx / size, uy = dy / size;
        const tip = [x + ux * reach, y + uy * reach], barb = Math.max(2, 0.5 * reach);
        pen.lineWidth = 0.6 + 0.9 * share;
        line(pen, [[x - ux * reach, y - uy * reach], tip]);
        line(pen, [[tip[0] - barb * (ux + 0.6 * uy), tip[1] - barb * (uy - 0.6 * ux)], tip, [tip[0] - barb * (ux - 0.6 * uy), tip[1] - barb * (uy + 0.6 * ux)]]);
      }
    }
    function points(pen, X, Y, colours) {
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 1.75;
      for (const [kappa, nu, kind] of [[1, 1, "minimum"], [-1, -1, "minimum"], [1, -1, "maximum"], [-1, 1, "maximum"], [0, 0, "saddle"]]) {
        pen.fillStyle = kind === "minimum" ? colours.ink : colours.paper;
        const [x, y] = [X(kappa), Y(nu)];
        if (kind === "saddle") { pen.beginPath(); [[0, -7], [7, 0], [0, 7], [-7, 0]].forEach(([dx, dy]) => pen.lineTo(x + dx, y + dy)); pen.closePath(); pen.fill(); pen.stroke(); }
        else { dot(pen, x, y, 6); pen.stroke(); }
      }
    }
    const along = picture("along", (pen, width, height, colours) => {
      const last = path ? Math.max(10, path[path.length - 1].step) : 10, powers = [];
      for (let p = 1; p <= last; p *= 10) powers.push(p);
      const area = [44, 26, width - 18, height - 44], distance = p => Math.hypot(p.x[2], p.x[3], p.x[4]);
      const top = path ? Math.max(1, ...path.map(distance)) : 1;
      const [X, Y] = axes(pen, colours, area, { from: 1, to: last, log: true, ticks: powers, title: "steps" }, { from: -1, to: top, ticks: [-1, 0, 1], title: "along the path" });
      if (!path) return;
      clipped(pen, area, () => [["a", [], p => p.x[0]], ["c", [], p => p.x[1]], ["b", [5, 4], distance]].forEach(([colour, dash, of]) => {
        pen.strokeStyle = colours[colour];
        pen.lineWidth = 2;
        pen.setLineDash(dash);
        line(pen, path.filter(p => p.step).map(p => [X(p.step), Y(of(p))]));
      }));
      pen.setLineDash([]);
    });

    function follow() {
      const steps = Math.min(MOST, Math.ceil(TIME / alpha));
      let x = attlas.start(value("kappa"), value("nu"), value("off")), next = 1;
      path = [{ step: 0, x }];
      for (let step = 1; step <= steps; step++) {
        x = attlas.step(c, x, alpha);
        if (step >= next || step === steps) { path.push({ step, x }); next = Math.max(step + 1, step * 1.02); }
      }
    }
    // Where starts end: coarse squares first, then finer ones where neighbours differ. Turning the signs of kappa and nu turns the picture.
    function* fill() {
      const off = value("off"), quick = attlas.tabulated(c), steps = Math.min(2 * MOST, Math.max(LEAST, Math.ceil(TIME / alpha))), turned = { oracle: "mirror", mirror: "oracle" };
      for (let side = 16; side <= SIDE; side *= 2) {
        const coarse = ends;
        const alike = (i, j) => { // around the square that this one is a quarter of
          for (let k = Math.max(i - 1, 0); k <= Math.min(i + 1, side / 2 - 1); k++) for (let l = Math.max(j - 1, 0); l <= Math.min(j + 1, side / 2 - 1); l++) if (coarse[k][l] !== coarse[i][j]) return false;
          return true;
        };
        const fine = Array.from({ length: side }, (_, i) => Array.from({ length: side }, (_, j) => coarse.length ? coarse[i >> 1][j >> 1] : ""));
        ends = fine;
        for (let i = 0; i < side; i++) for (let j = 0; j < side / 2; j++) {
          if (coarse.length && alike(i >> 1, j >> 1)) continue;
          let x = attlas.start((2 * i + 1) / side - 1, (2 * j + 1) / side - 1, off), end = "neither";
          for (let step = 1; step <= steps && end === "neither"; step++) {
            x = attlas.step(quick, x, alpha);
            if (step % 64 === 0) end = attlas.ending(x);
            if (step % 2048 === 0) yield;
          }
          fine[i][j] = end;
          fine[side - 1 - i][side - 1 - j] = turned[end] || end;
          yield;
        }
      }
    }
    function restart() {
      const mine = ++run, work = fill();
      ends = [];
      const go = () => {
        if (mine !== run) return;
        const until = performance.now() + 14;
        let done = false;
        while (!done && performance.now() < until) done = work.next().done;
        field();
        if (done) $("field").dataset.done = "yes"; else requestAnimationFrame(go);
      };
      go();
    }
    let before = "";
    function changed() {
      c = attlas.constants({ lam: value("lam"), dim: value("dim"), length: value("length"), gamma: value("gamma") });
      alpha = attlas.safeStep(c);
      follow();
      const off = value("off"), key = [c.lam, c.dim, c.length, c.gamma, off].join();
      if (key !== before) {
        before = key;
        delete $("field").dataset.done;
        edge = off === 0 ? attlas.boundary(c) : null;
        if (edge) { run++; $("field").dataset.done = "yes"; } else restart();
      }
      field();
      along();
      const last = path[path.length - 1], end = attlas.ending(last.x), critical = attlas.criticalLam(c);
      const words = { oracle: "is at the oracle", mirror: "is at the oracle's mirror image, which predicts the same", swapped: "is at the swapped point", neither: Math.abs(last.x[1]) > 0.9 ? "has learned the value and is still on its way to the place" : "is at neither end" }[end];
      tell({
        status: `From κ = ${show(value("kappa"))}, ν = ${show(value("nu"))}, descent ${words} after ${show(last.step)} steps of size ${show(alpha)}: κ = ${show(last.x[0])}, ν = ${show(last.x[1])}, risk ${show(attlas.risk(c, last.x))}.`,
        "risk-oracle": show(attlas.risk(c, [1, 1, 0, 0, 0])), "risk-swapped": show(attlas.risk(c, attlas.swapped(c))),
        "risk-saddle": show(attlas.risk(c, [0, 0, 0, 0, 0])), "risk-linear": show(attlas.linearRisk(c)),
        critical: Number.isFinite(critical) ? `${show(critical)}, so that the manifold ${c.lam < critical ? "attracts" : "repels"}` : "none: the dimension is too small",
      });
    }
    const soon = watch(changed);
    pointer("field", true, (x, y) => {
      const [left, top, right, bottom] = box, on = (v, from, to) => Math.max(-0.98, Math.min(0.98, Math.round(((v - from) / (to - from) * 2 - 1) * 50) / 50));
      set("kappa", on(x, left, right));
      set("nu", on(y, bottom, top));
      soon();
    });
  }

  // --- what a head estimates ------------------------------------------------------------------------------------------
  function estimator() {
    const { keys: every, values: all, truth, noise, temperature: bayes } = data(), DEGREE = Math.PI / 180;
    let keys, values, weights, curves, query, box, cached = "", rows, solved;

    const scene = picture("scene", (pen, width, height, colours) => {
      const split = Math.round(0.64 * height), ticks = width < 480 ? [-180, -90, 0, 90, 180] : [-180, -120, -60, 0, 60, 120, 180];
      const angle = { from: -180, to: 180, ticks, text: v => `${show(v)}°` };
      const most = 1.1 * Math.max(...all.map(Math.abs));
      box = [44, 26, width - 18, split - 26];
      const [X, Y] = axes(pen, colours, box, { ...angle, title: "" }, { from: -most, to: most, ticks: [-2, -1, 0, 1, 2], title: "value" });
      const lower = [44, split + 26, width - 18, height - 44];
      const high = weights ? Math.max(0.02, ...weights.softmax, ...weights.cme) : 1, low = weights ? Math.min(-0.1 * high, ...weights.cme) : 0;
      const tick = 10 ** Math.floor(Math.log10(high)) * (high / 10 ** Math.floor(Math.log10(high)) > 4 ? 4 : high / 10 ** Math.floor(Math.log10(high)) > 2 ? 2 : 1);
      const [, W] = axes(pen, colours, lower, { ...angle, title: "angle of the key" }, { from: 1.1 * low, to: 1.1 * high, ticks: [0, tick], title: "what each token counts for" });
      if (!weights) return;
      const x = X(query / DEGREE);
      pen.strokeStyle = colours.quiet;
      pen.lineWidth = 1;
      line(pen, [[x, box[1]], [x, lower[3]]]);
      keys.forEach((key, i) => {
        const at = X(key / DEGREE), sticks = [["a", -1.5, weights.softmax[i]], ["b", 1.5, weights.cme[i]]];
        for (const [colour, shift, weight] of sticks) {
          pen.strokeStyle = colours[colour];
          pen.lineWidth = keys.length > 100 ? 1.5 : 2.5;
          line(pen, [[at + shift, W(0)], [at + shift, W(weight)]]);
        }
      });
      clipped(pen, box, () => {
        const strongest = Math.max(...weights.softmax);
        keys.forEach((key, i) => {
          pen.fillStyle = colours.quiet;
          pen.globalAlpha = 0.35 + 0.65 * weights.softmax[i] / strongest;
          dot(pen, X(key / DEGREE), Y(values[i]), 2.5 + 2.5 * weights.softmax[i] / strongest);
        });
        pen.globalAlpha = 1;
        for (const [name, colour, dash] of [["truth", "ink", [2, 4]], ["softmax", "a", []], ["cme", "b", [9, 3]]]) {
          pen.strokeStyle = colours[colour];
          pen.lineWidth = 2;
          pen.setLineDash(dash);
          line(pen, curves[name].map((y, i) => [X(i - 180), Y(y)]));
        }
        pen.setLineDash([]);
        for (const [name, colour] of [["truth", "ink"], ["softmax", "a"], ["cme", "b"]]) {
          pen.fillStyle = colours.paper;
          dot(pen, x, Y(here(name)), 7);
          pen.fillStyle = colours[colour];
          dot(pen, x, Y(here(name)), 5);
        }
      });
    });
    const here = name => curves[name][Math.round(query / DEGREE) + 180];
    const error = name => Math.sqrt(curves[name].reduce((sum, y, i) => sum + (y - truth[i]) ** 2, 0) / truth.length);

    function changed() {
      const temperature = value("temperature"), ridge = value("ridge"), count = value("tokens"), key = [temperature, ridge, count].join();
      query = value("query") * DEGREE;
      if (key !== cached) {
        cached = key;
        keys = every.slice(0, count);
        values = all.slice(0, count);
        rows = attlas.factor(keys, temperature, ridge);
        solved = attlas.solve(rows, values);
        const grid = truth.map((_, i) => (i - 180) * DEGREE);
        curves = {
          truth, softmax: grid.map(q => attlas.mix(attlas.softmaxWeights(q, keys, temperature), values)),
          cme: grid.map(q => attlas.mix(solved, keys.map(k => attlas.kernel(q, k, temperature)))),
        };
      }
      weights = { softmax: attlas.softmaxWeights(query, keys, temperature), cme: attlas.solve(rows, keys.map(k => attlas.kernel(query, k, temperature))) };
      scene();
      const sum = weights.cme.reduce((x, y) => x + y, 0);
      tell({
        status: `At ${show(value("query"))}° the truth is ${show(here("truth"))}, softmax attention says ${show(here("softmax"))} and CME attention ${show(here("cme"))}.`,
        "error-softmax": show(error("softmax")), "error-cme": show(error("cme")),
        effective: show(1 / weights.softmax.reduce((x, y) => x + y * y, 0)), sum: show(sum),
        negative: show(weights.cme.reduce((x, y) => x + Math.min(y, 0), 0)),
      });
    }
    const soon = watch(changed);
    pointer("scene", true, x => { set("query", Math.max(-180, Math.min(180, Math.round((x - box[0]) / (box[2] - box[0]) * 360 - 180)))); soon(); });
    $("bayes").addEventListener("click", () => { set("temperature", bayes); set("ridge", Number((noise * noise).toPrecision(6))); soon(); });
  }

  // --- a head for a sparse function -----------------------------------------------------------------------------------
  function sparse() {
    const tables = data();
    let T, s, c, name, head, ones, others;

    const bars = picture("bars", (pen, width, height, colours) => {
      const area = [44, 26, width - 18, height - 44], places = Math.min(T || 10, width < 480 ? 20 : 40), slots = places + 4;
      const top = head ? Math.max(head.each, head.leak) * 1.1 : 1, tick = top > 0.5 ? 0.5 : top > 0.2 ? 0.2 : 0.1;
      const [, Y] = axes(pen, colours, area, { from: 0, to: 1, ticks: [], title: "" }, { from: 0, to: top, ticks: [0, tick], title: "attention" });
      if (!head) return;
      const wide = (area[2] - area[0]) / slots, chosen = Array.from({ length: s }, (_, i) => Math.floor((i + 0.5) * places / s));
      const bar = (slot, weight, colour, bit, span = 1) => {
        pen.fillStyle = colours[colour];
        const height = Math.max(1, Y(0) - Y(weight));
        pen.fillRect(area[0] + slot * wide + 0.12 * wide, Y(0) - height, span * wide - 0.24 * wide, height);
        if (bit === null || wide < 7) return;
        pen.fillStyle = colour === "a" ? colours.ink : colours.quiet;
        pen.textAlign = "center";
        pen.textBaseline = "top";
        pen.fillText(bit, area[0] + (slot + span / 2) * wide, area[3] + 6);
      };
      for (let t = 0; t < places; t++) {
        const j = chosen.indexOf(t);
        if (j >= 0) bar(t, head.each, "a", value(`bit${j + 1}`) ? "1" : "0"); else bar(t, head.other, "b", others(t));
      }
      bar(places + 1, head.leak, "b", null, 3);
      pen.fillStyle = colours.quiet;
      pen.textAlign = "left";
      pen.textBaseline = "bottom";
      pen.fillText(`${T > places ? `${places} of ` : ""}${show(T)} places and their bits`, area[0], area[3] + 38);
      pen.textAlign = "right";
      pen.fillText("all others", area[2], area[3] + 38);
    });

    const levels = picture("levels", (pen, width, height, colours) => {
      const area = [44, 26, width - 18, height - 44];
      const [X, Y] = axes(pen, colours, area, { from: 0, to: 1, ticks: [0, 0.25, 0.5, 0.75, 1], title: "attention on ones" }, { from: -0.5, to: (s || 1) + 0.5, ticks: head ? Array.from({ length: s + 1 }, (_, k) => k) : [], title: "relevant ones" });
      if (!head) return;
      for (let k = 0; k <= s; k++) {
        pen.strokeStyle = colours[k >= attlas.needed(name, s) ? "a" : "b"];
        pen.lineWidth = Math.min(12, 0.5 * (Y(0) - Y(1)));
        pen.lineCap = "butt";
        line(pen, [[X(head.each * k), Y(k)], [Math.max(X(head.each * k + head.leak), X(head.each * k) + 2), Y(k)]]);
      }
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 1.5;
      pen.setLineDash([6, 4]);
      line(pen, [[X(head.threshold), area[1]], [X(head.threshold), area[3]]]);
      pen.setLineDash([]);
      pen.fillStyle = colours.ink;
      dot(pen, X(level()), Y(ones), 5);
      pen.textBaseline = "top";
      pen.textAlign = head.threshold > 0.6 ? "right" : "left";
      pen.fillText("threshold", X(head.threshold) + (head.threshold > 0.6 ? -6 : 6), area[1] + 2);
    });
    const share = () => ({ zeros: 0, ones: 1, alternate: 0.5 })[value("filling")];
    const level = () => head.each * ones + head.leak * share();

    function curve(id, axis, at, of) {
      return picture(id, (pen, width, height, colours) => {
        const area = [44, 26, width - 18, height - 44];
        const found = head ? ["norms", "parameters"].map(kind => axis.map((v, i) => [v, of(tables[kind], i)]).filter(pair => pair[1] !== null)) : [[], []];
        const numbers = found.flat().map(pair => pair[1]), low = Math.floor(Math.min(...numbers, 6)), high = Math.ceil(Math.max(...numbers, 12));
        const ticks = axis[axis.length - 1] > 1000 ? [10, 1000, 100000] : [1, 10, 100], yTicks = [];
        for (let p = low; p <= high; p += high - low > 6 ? 4 : 2) yTicks.push(p);
        const [X, Y] = axes(pen, colours, area, { from: axis[0], to: axis[axis.length - 1], log: true, ticks, title: axis[axis.length - 1] > 1000 ? "T, places" : "c, sharpness" },
          { from: low, to: high, ticks: yTicks, text: p => `10${superscript(p)}`, title: "samples" });
        if (!head) return;
        pen.fillStyle = colours.quiet;
        pen.textAlign = "center";
        if (!numbers.length) pen.fillText("no margin, no bound", (area[0] + area[2]) / 2, (area[1] + area[3]) / 2);
        found.forEach((points, i) => {
          pen.strokeStyle = colours[i ? "c" : "a"];
          pen.setLineDash(i ? [7, 4] : []);
          pen.lineWidth = 2;
          line(pen, points.map(([x, y]) => [X(x), Y(y)]));
          pen.setLineDash([]);
          pen.fillStyle = colours[i ? "c" : "a"];
          points.filter(([x]) => x === at()).forEach(([x, y]) => dot(pen, X(x), Y(y), 5));
        });
      });
    }
    const index = () => [tables.functions.indexOf(name), tables.places.indexOf(T), s - 1, tables.sharpnesses.indexOf(c)];
    const overT = curve("over-places", tables.places, () => T, (table, i) => { const [f, , k, j] = index(); return table[f][i][k][j]; });
    const overC = curve("over-sharpness", tables.sharpnesses, () => c, (table, i) => { const [f, t, k] = index(); return table[f][t][k][i]; });

    watch(() => {
      [T, s, c, name] = [value("places"), value("sparsity"), value("sharpness"), value("function")];
      head = attlas.head(T, s, c, name);
      for (let j = 1; j <= 8; j++) $(`bit${j}`).closest("label").classList.toggle("unused", j > s), $(`bit${j}`).disabled = j > s;
      ones = 0;
      for (let j = 1; j <= s; j++) ones += value(`bit${j}`);
      others = t => ({ zeros: "0", ones: "1", alternate: String(t % 2) })[value("filling")];
      [bars, levels, overT, overC].forEach(paint => paint());
      const output = level() - head.threshold, label = ones >= attlas.needed(name, s), right = output > 0 === label, [f, t, k, j] = index();
      const asked = kind => { const log = tables[kind][f][t][k][j]; return log === null ? "no number: there is no margin" : `${show(10 ** (log % 1), 2)} · 10${superscript(Math.floor(log))}`; };
      tell({
        status: `With ${ones} of ${s} relevant bits set, ${name} is ${label ? 1 : 0}; the head gives ${show(output)}, which is ${right ? "right" : "wrong"}. Its margin over all inputs is ${show(head.margin)}.`,
        each: show(head.each), leak: `${show(head.leak)}, ${show(head.other)} for each`, beta: show(head.beta), "score-norm": show(head.scoreNorm),
        "samples-norms": asked("norms"), "samples-parameters": asked("parameters"),
      });
    });
  }

  const page = document.querySelector("[data-explorer]");
  if (page) ({ portrait, estimator, sparse })[page.dataset.explorer]();
})();
