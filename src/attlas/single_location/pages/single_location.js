// Single-location regression: each function is the twin of one in Python, and a test compares their numbers.
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
  // Overlaps of a pair of vectors uniform on the sphere, drawn with `random`, which gives numbers between 0 and 1.
  function sphereStart(dim, random) {
    const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
    const unit = () => { const g = Array.from({ length: dim }, normal), size = Math.hypot(...g); return g.map(x => x / size); };
    const k = unit(), v = unit();
    return [k[0], v[1], v[0], k[1], k.reduce((sum, x, i) => sum + x * v[i], 0)];
  }
  // Numbers between 0 and 1 that a seed decides.
  function randomly(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let x = Math.imul(state ^ (state >>> 15), 1 | state);
      x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
      return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
    };
  }
  const sharpness = (first, rate, step) => first / (1 + rate * step);
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
    criticalLam, linearRisk, start, sphereStart, randomly, sharpness, ending, boundary };
})());

