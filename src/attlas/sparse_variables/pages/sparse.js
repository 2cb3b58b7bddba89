// A head for a sparse function: T places, s of them relevant, sharpness c, "at least `needed` ones".
// First the formulas, each the twin of a function in Python (a test compares their numbers); then the pictures.
"use strict";

Object.assign(attlas, (() => {
  const needed = (name, s) => ({ and: s, or: 1, majority: Math.floor(s / 2) + 1 })[name];
  function head(T, s, c, name) {
    const each = c / (s * c + 1), leak = 1 / (s * c + 1), threshold = each * (needed(name, s) - 1) + (each + leak) / 2;
    const beta = Math.log(c * (T - s));
    return { each, leak, other: leak / (T - s), threshold, beta, margin: (each - leak) / 2, scoreNorm: Math.sqrt(2 * s) * Math.abs(beta),
      valueNorm: Math.sqrt(2 * (threshold ** 2 + (1 - threshold) ** 2)) };
  }

  return { needed, head };
})());

(() => {
  const { $, picture, show, superscript, value, watch, tell, axes, line, dot, data } = explorer;
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
})();
