// Where descent goes: single-location regression.
// First the formulas, each the twin of a function in Python (a test compares their numbers); then the pictures.
"use strict";

Object.assign(attlas, (() => {
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

  return { erf, zeta, zetas, constants, tabulated, risk, gradient, velocity, step, safeStep, swapped,
    criticalLam, linearRisk, start, ending, boundary };
})());

(() => {
  const { $, picture, show, value, set, watch, tell, axes, line, dot, clipped, pointer } = explorer;
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
})();
