// The formulas of several locations, each the twin of a function in Python (a test compares their numbers).
"use strict";

Object.assign(attlas, (() => {
  // --- random numbers from a seed ---------------------------------------------------------------------------------
  // Uniform ones in (0, 1) by mulberry32, normal ones by Box and Muller, chi variables by Marsaglia and Tsang.
  function source(seed) {
    let state = seed >>> 0, spare = null;
    const uniform = () => {
      state = state + 0x6D2B79F5 >>> 0;
      let t = Math.imul(state ^ state >>> 15, state | 1);
      t = t + Math.imul(t ^ t >>> 7, t | 61) ^ t;
      return ((t ^ t >>> 14) >>> 0) / 4294967296 + 1.1641532182693481e-10;
    };
    const normal = () => {
      if (spare !== null) { const kept = spare; spare = null; return kept; }
      const radius = Math.sqrt(-2 * Math.log(uniform())), angle = 2 * Math.PI * uniform();
      spare = radius * Math.sin(angle);
      return radius * Math.cos(angle);
    };
    const chi = freedom => {
      if (freedom < 1) return 0;
      if (freedom < 3) return Math.hypot(...Array.from({ length: freedom }, normal));
      const d = freedom / 2 - 1 / 3, c = 1 / Math.sqrt(9 * d);
      for (;;) {
        const x = normal(), v = (1 + c * x) ** 3;
        if (v > 0 && Math.log(uniform()) < x * x / 2 + d - d * v + d * Math.log(v)) return Math.sqrt(2 * d * v);
      }
    };
    return { uniform, normal, chi };
  }

  // --- small matrices, as arrays of rows --------------------------------------------------------------------------
  const matrix = (rows, columns, of) => Array.from({ length: rows }, (_, i) => Float64Array.from({ length: columns }, (_, j) => of(i, j)));
  // The products of the rows of x from a column on.
  const gram = (x, from = 0) => matrix(x.length, x.length, (i, j) => { let sum = 0; for (let k = from; k < x[i].length; k++) sum += x[i][k] * x[j][k]; return sum; });
  // The lower triangular root of a positive semidefinite matrix.
  function root(s) {
    const lower = matrix(s.length, s.length, () => 0);
    for (let j = 0; j < s.length; j++) for (let i = j; i < s.length; i++) {
      let sum = s[i][j];
      for (let k = 0; k < j; k++) sum -= lower[i][k] * lower[j][k];
      if (i === j) lower[i][i] = sum > 1e-13 * s[i][i] ? Math.sqrt(sum) : 0;
      else lower[i][j] = lower[j][j] ? sum / lower[j][j] : 0;
    }
    return lower;
  }
  // A root of a Wishart matrix of p columns: Bartlett's.
  const wishart = (random, p, freedom) => matrix(p, p, (i, j) => i === j ? random.chi(freedom - i) : i > j && freedom > j ? random.normal() : 0);

  // --- heads: a state is (M, C) [p, r + p], a head its rows key and value ---------------------------------------------
  // A task is {signals, lam, length, unit}; place i has the directions 2i of its key and 2i + 1 of its value, and is token i.
  // Sequences in coordinates [r + p, L]: the teacher's fields, and below them noise.
  function sequence(task, width, random) {
    const x = matrix(width, task.length, () => random.normal());
    task.signals.forEach((signal, i) => { x[2 * i][i] += signal; });
    return x;
  }
  const target = (task, x) => task.signals.reduce((sum, _, i) => sum + x[2 * i + 1][i], 0);
  // What a state predicts on a sequence, with the weights [head][l] and the values [head][l] that it reads.
  function predict(task, u, x) {
    const field = row => { const h = new Float64Array(task.length); for (let k = 0; k < row.length; k++) for (let l = 0; l < h.length; l++) h[l] += row[k] * x[k][l]; return h; };
    const weights = [], values = [], means = [];
    let sum = 0;
    for (let h = 0; h < u.length; h += 2) {
      const w = field(u[h]), v = field(u[h + 1]);
      let top = -Infinity, total = 0, mean = 0;
      for (const a of w) top = Math.max(top, task.lam * a);
      for (let l = 0; l < w.length; l++) total += w[l] = Math.exp(task.lam * w[l] - top);
      for (let l = 0; l < w.length; l++) mean += (w[l] /= total) * v[l];
      weights.push(w); values.push(v); means.push(mean);
      sum += mean;
    }
    return { sum, weights, values, means };
  }
  const loss = (task, u, x) => (predict(task, u, x).sum - target(task, x)) ** 2;
  const risk = (task, u, sequences) => sequences.reduce((sum, x) => sum + loss(task, u, x), 0) / sequences.length;
  // A step of online descent of size alpha on a batch; `bartlett` is the root of a Wishart matrix of d - r - p degrees of freedom.
  function step(task, u, batch, alpha, bartlett) {
    const p = u.length, width = u[0].length, g = matrix(p, width, () => 0), square = matrix(p, p, () => 0), d = matrix(p, task.length, () => 0);
    for (const x of batch) {
      const found = predict(task, u, x), error = 2 * (found.sum - target(task, x));
      found.weights.forEach((w, h) => {
        for (let l = 0; l < w.length; l++) {
          d[2 * h + 1][l] = error * w[l];
          d[2 * h][l] = error * task.lam * w[l] * (found.values[h][l] - found.means[h]);
        }
      });
      for (let i = 0; i < p; i++) {
        for (let k = 0; k < width; k++) for (let l = 0; l < task.length; l++) g[i][k] += d[i][l] * x[k][l];
        for (let j = 0; j < p; j++) for (let l = 0; l < task.length; l++) square[i][j] += d[i][l] * d[j][l];
      }
    }
    const scale = alpha / batch.length, a = root(square), r = 2 * task.signals.length;
    const moved = matrix(p, width + p, (i, k) => { // the last p columns are what lies outside
      if (k < width) return u[i][k] - scale * g[i][k];
      let sum = 0;
      for (let j = k - width; j <= i; j++) sum += a[i][j] * bartlett[j][k - width];
      return scale * sum;
    });
    if (task.unit) for (let i = 0; i < p; i++) {
      let along = 0, size = 0;
      for (let k = 0; k < width; k++) along += scale * g[i][k] * u[i][k];
      for (let k = 0; k < width; k++) moved[i][k] += along * u[i][k];
      for (const y of moved[i]) size += y * y;
      for (let k = 0; k < width + p; k++) moved[i][k] /= Math.sqrt(size);
    }
    const c = root(gram(moved, r));
    return matrix(p, width, (i, k) => k < r ? moved[i][k] : c[i][k - r]);
  }
  // Gaussian vectors of squared length size^2 in d dimensions, but for the overlaps of values with the values' directions, `places` [head][place].
  function start(task, dim, size, places, random) {
    const r = 2 * task.signals.length, p = 2 * places.length, c = wishart(random, p, dim - r), scale = size / Math.sqrt(dim);
    const u = matrix(p, r + p, (i, k) => scale * (k < r ? random.normal() : c[i][k - r]));
    places.forEach((at, h) => at.forEach((overlap, i) => { u[2 * h + 1][2 * i + 1] = overlap; }));
    if (task.unit) for (const row of u) { const size = Math.hypot(...row); for (let k = 0; k < row.length; k++) row[k] /= size; }
    return u;
  }
  // A run of all steps, with some states kept.
  function* run(task, dim, alpha, steps, batch, u, random, kept) {
    const p = u.length, freedom = dim - u[0].length;
    let next = 0;
    for (let t = 0; t <= steps; t++) {
      if (t >= next || t === steps) { yield { step: t, u }; next += steps / kept; }
      if (t < steps) u = step(task, u, Array.from({ length: batch }, () => sequence(task, u[0].length, random)), alpha, wishart(random, p, freedom));
    }
  }
  // Bayes' prediction: the posterior of the places is proportional to exp(s1 chi1 + s2 chi2) over pairs of different tokens.
  function bayes(task, x) {
    const odds = task.signals.map((s, i) => x[2 * i].map(chi => Math.exp(s * (chi - s)))), total = odds.map(w => w.reduce((a, b) => a + b));
    const apart = odds.map((w, i) => w.map((a, l) => a * (total[1 - i] - odds[1 - i][l])));
    return apart.reduce((sum, w, i) => { const all = w.reduce((a, b) => a + b); return sum + w.reduce((part, a, l) => part + a / all * x[2 * i + 1][l], 0); }, 0);
  }
  // How far two heads have parted: half the difference of their values' overlaps, straight less crossed.
  const parted = u => u.length < 4 ? 0 : Math.abs(u[1][1] + u[3][3] - u[1][3] - u[3][1]) / 2;

  return { source, gram, root, wishart, sequence, target, predict, risk, step, start, run, bayes, parted };
})());
