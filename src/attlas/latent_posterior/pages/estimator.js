// What a head estimates: attention as an estimator on the circle, where keys and queries are angles.
// First the formulas, each the twin of a function in Python (a test compares their numbers); then the pictures.
"use strict";

Object.assign(attlas, (() => {
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

  return { kernel, softmaxWeights, factor, solve, cmeWeights, mix };
})());

(() => {
  const { $, picture, show, value, set, watch, tell, axes, line, dot, clipped, pointer, data } = explorer;
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
})();
