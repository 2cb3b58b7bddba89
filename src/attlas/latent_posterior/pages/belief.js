// What a network believes: encoders of one layer over counts of letters, and the exact posterior.
// First the formulas, each the twin of a function in Python (a test compares their numbers); then the pictures.
"use strict";

Object.assign(attlas, (() => {
  const sum = values => values.reduce((x, y) => x + y, 0);
  const law = values => { const total = sum(values); return values.map(x => x / total); };
  const softmax = scores => { const top = Math.max(...scores); return law(scores.map(x => Math.exp(x - top))); };
  // A vector times the matrix [rows, columns] that begins at `start` of a flat array.
  function times(vector, matrix, columns, start = 0) {
    const result = new Array(columns).fill(0);
    vector.forEach((x, i) => { for (let j = 0; j < columns; j++) result[j] += x * matrix[start + i * columns + j]; });
    return result;
  }
  const inner = (a, b) => a.reduce((total, x, i) => total + x * b[i], 0);
  const normalised = state => { const scale = 1 / Math.sqrt(inner(state, state) / state.length + 1e-6); return state.map(x => x * scale); };
  const gelu = x => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

  // The arrays of a network by name: whole numbers of 16 bits times a scale for each array.
  function unpack(layout, { scales, data }) {
    const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0)), view = new DataView(bytes.buffer);
    let at = -2;
    return Object.fromEntries(layout.map(([name, shape], i) =>
      [name, Array.from({ length: shape.reduce((x, y) => x * y, 1) }, () => view.getInt16(at += 2, true) * scales[i])]));
  }
  // The solution of a symmetric positive system, by elimination.
  function solve(system, right) {
    const rows = system.map((row, i) => [...row, right[i]]), n = rows.length;
    for (let i = 0; i < n; i++) for (let k = i + 1; k < n; k++) {
      const share = rows[k][i] / rows[i][i];
      for (let j = i; j <= n; j++) rows[k][j] -= share * rows[i][j];
    }
    const x = new Array(n);
    for (let i = n - 1; i >= 0; i--) x[i] = (rows[i][n] - sum(rows[i].slice(i + 1, n).map((a, j) => a * x[i + 1 + j]))) / rows[i][i];
    return x;
  }
  const softmaxCounted = (query, keys, counts, temperature) => softmax(keys.map((key, t) => inner(query, key) / temperature + Math.log(counts[t])));
  function cmeCounted(query, keys, counts, temperature, ridge) {
    const kernel = (a, b) => Math.exp(-sum(a.map((x, i) => (x - b[i]) ** 2)) / (2 * temperature)), root = counts.map(Math.sqrt);
    const system = keys.map((a, i) => keys.map((b, j) => root[i] * kernel(a, b) * root[j] + (i === j ? ridge : 0)));
    return solve(system, keys.map((key, i) => root[i] * kernel(query, key))).map((x, i) => x * root[i]);
  }
  // State and prediction at the masked token, and what each head's weights add up to at each letter and, last, at the masked token.
  function forward(net, attention, counts) {
    const width = net.blank.length, heads = net.log_temperature.length, rank = net.query.length / heads / width, hidden = net.inner.length / width;
    const seen = counts.map((_, t) => t).filter(t => counts[t] > 0), often = [...seen.map(t => counts[t]), attention === "softmax" ? 1 : 0]; // the masked token is no key of CME attention
    const states = [...seen.map(t => net.embed.slice(t * width, (t + 1) * width)), net.blank].map(normalised);
    let state = net.blank;
    const weights = Array.from({ length: heads }, (_, h) => {
      const query = times(states[seen.length], net.query, rank, h * width * rank), keys = states.map(s => times(s, net.key, rank, h * width * rank));
      const temperature = Math.exp(net.log_temperature[h]);
      const found = attention === "softmax" ? softmaxCounted(query, keys, often, temperature) : cmeCounted(query, keys, often, temperature, Math.exp(net.log_ridge[h]));
      const mixed = times(states.reduce((total, s, t) => total.map((x, i) => x + found[t] * s[i]), new Array(width).fill(0)), net.value, width, h * width * width);
      state = state.map((x, i) => x + mixed[i]);
      return [...counts.map((_, t) => seen.includes(t) ? found[seen.indexOf(t)] : 0), found[seen.length]];
    });
    const more = times(times(normalised(state), net.inner, hidden).map(gelu), net.outer, width);
    state = normalised(state.map((x, i) => x + more[i]));
    return { state, weights, prediction: softmax(times(state, net.read, net.read.length / width)) };
  }
  const posterior = ({ prior, words }, counts) => softmax(prior.map((p, z) => Math.log(p) + sum(counts.map((n, t) => n * Math.log(words[z][t])))));
  const predictive = ({ words }, belief) => words[0].map((_, t) => sum(belief.map((p, z) => p * words[z][t])));
  // The nearest mixture of topics to a prediction, and what a linear probe reads from a state.
  const expressed = ({ expressed: matrix }, prediction) => law(times(prediction, matrix.flat(), matrix[0].length).map(x => Math.max(x, 0)));
  const probed = (net, state) => law(times([...state, 1], net.probe, net.probe.length / (state.length + 1)).map(x => Math.max(x, 0)));
  const distance = (p, q) => sum(p.map((x, i) => Math.abs(x - q[i]))) / 2;
  const divergence = (p, q) => sum(p.map((x, i) => x * Math.log(x / q[i])));

  return { unpack, forward, posterior, predictive, expressed, probed, distance, divergence };
})());

(() => {
  const { $, picture, show, value, set, label, watch, tell, line, pointer, data } = explorer;
  const model = data(), alphabet = [...model.letters], most = $("sequence").maxLength, WHO = ["exact", "softmax", "CME"];
  const TITLES = { exact: "exact posterior", softmax: "softmax network", CME: "CME network" };
  const unpacked = {};
  let letters = "", read = 0, told, box;

  const network = (attention, trained, steps) =>
    unpacked[[attention, trained, steps]] ||= attlas.unpack(model.layout, model.networks[attention][trained][model.steps.indexOf(steps)]);
  const counted = text => alphabet.map(letter => text.split(letter).length - 1);

  const beliefs = picture("beliefs", (pen, width, height, colours) => {
    if (!told) return;
    const left = 34, right = width - 8, column = (right - left) / (letters.length + 1), strip = (height - 26) / 3;
    box = [left, column];
    WHO.forEach((who, k) => {
      const top = k * strip + 22, bottom = (k + 1) * strip - 6, Y = p => bottom + p * (top - bottom);
      pen.fillStyle = colours.ink;
      pen.textAlign = "left";
      pen.textBaseline = "bottom";
      pen.fillText(TITLES[who], left, top - 5);
      pen.fillStyle = colours.quiet;
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      for (const p of [0, 0.5, 1]) pen.fillText(show(p), left - 6, Y(p));
      told.forEach((each, t) => {
        const gap = column > 9 ? 1 : 0.4;
        let low = 0;
        each[who].forEach((p, z) => {
          pen.fillStyle = colours["abc"[z]];
          pen.globalAlpha = t === read ? 1 : 0.72;
          pen.fillRect(left + t * column + gap, Y(low + p), column - 2 * gap, Y(low) - Y(low + p));
          low += p;
        });
      });
      pen.globalAlpha = 1;
      pen.strokeStyle = colours.ink;
      if (who !== "exact") for (const upTo of [1, 2]) {
        pen.lineWidth = 1.6;
        line(pen, told.flatMap((each, t) => [t, t + 1].map(edge => [left + edge * column, Y(each.exact[0] + (upTo > 1 ? each.exact[1] : 0))])));
      }
      pen.lineWidth = 2.2;
      pen.strokeRect(left + read * column, top, column, bottom - top);
    });
    pen.textAlign = "center";
    pen.textBaseline = "top";
    [...letters].forEach((letter, t) => {
      pen.fillStyle = t < read ? colours.ink : colours.quiet;
      if (column >= 7) pen.fillText(letter, left + (t + 1.5) * column, height - 22);
    });
  });

  const attention = picture("attention", (pen, width, height, colours) => {
    if (!told) return;
    const names = [...alphabet, "□"], half = width / 2;
    ["softmax", "CME"].forEach((who, k) => {
      const weights = told[read].weights[who], every = ["softmax", "CME"].flatMap(name => told[read].weights[name].flat());
      const high = Math.ceil(10 * Math.max(0.2, ...every)) / 10, low = Math.floor(10 * Math.min(0, ...every)) / 10;
      const left = k * half + 34, right = (k + 1) * half - 6, top = 28, bottom = height - 24, Y = w => bottom + (w - low) / (high - low) * (top - bottom), slot = (right - left) / names.length;
      pen.fillStyle = colours.ink;
      pen.textAlign = "left";
      pen.textBaseline = "bottom";
      pen.fillText(`${who} attention`, left, top - 8);
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillStyle = colours.quiet;
      pen.strokeStyle = colours.line;
      pen.lineWidth = 1;
      for (const w of new Set([low, 0, high])) { line(pen, [[left, Y(w)], [right, Y(w)]]); pen.fillText(show(w), left - 6, Y(w)); }
      names.forEach((name, t) => {
        weights.forEach((head, h) => {
          pen.fillStyle = h ? colours.d : colours.ink;
          pen.fillRect(left + t * slot + (0.14 + 0.38 * h) * slot, Math.min(Y(0), Y(head[t])), 0.34 * slot, Math.max(1, Math.abs(Y(0) - Y(head[t]))));
        });
        pen.fillStyle = colours.quiet;
        pen.textAlign = "center";
        pen.textBaseline = "top";
        pen.fillText(name, left + (t + 0.5) * slot, bottom + 7);
      });
    });
  });

  function changed() {
    const typed = $("sequence").value, kept = [...typed.toLowerCase()].filter(letter => alphabet.includes(letter)).join("").slice(0, most);
    if (typed !== kept) set("sequence", kept);
    letters = kept;
    if (value("read") > letters.length) { set("read", letters.length); label($("read")); }
    read = value("read");
    const nets = Object.fromEntries(["softmax", "CME"].map(who => [who, network(who, value("trained"), value("steps"))])), probe = value("source") === "probe";
    told = Array.from({ length: letters.length + 1 }, (_, t) => {
      const counts = counted(letters.slice(0, t)), each = { exact: attlas.posterior(model, counts), weights: {}, lost: {} };
      for (const [who, net] of Object.entries(nets)) {
        const found = attlas.forward(net, who, counts);
        each[who] = probe ? attlas.probed(net, found.state) : attlas.expressed(model, found.prediction);
        each.weights[who] = found.weights;
        each.lost[who] = attlas.divergence(attlas.predictive(model, each.exact), found.prediction);
      }
      return each;
    });
    beliefs();
    attention();
    const here = told[read], likeliest = here.exact.indexOf(Math.max(...here.exact)), percent = p => `${Math.round(100 * p)} %`;
    const facts = { status: `After ${read ? `${read} letter${read > 1 ? "s" : ""} (${letters.slice(0, read)})` : "no letter"} and ${show(value("steps"))} steps of training: topic ${likeliest + 1} has the probability ${percent(here.exact[likeliest])}; the softmax network gives it ${percent(here.softmax[likeliest])} and the CME network ${percent(here.CME[likeliest])}.` };
    for (const who of WHO) here[who].forEach((p, z) => { facts[`${who}-${z + 1}`] = p.toFixed(3); });
    for (const who of ["softmax", "CME"]) { facts[`${who}-distance`] = attlas.distance(here.exact, here[who]).toFixed(3); facts[`${who}-lost`] = here.lost[who].toFixed(4); }
    tell(facts);
  }
  const soon = watch(changed);
  const write = (text, at = text.length) => { set("sequence", text.slice(0, most)); set("read", Math.min(at, most)); soon(); };
  $("sequence").addEventListener("input", () => set("read", Math.min($("sequence").value.length, most)));
  document.querySelectorAll("[data-letter]").forEach(button => button.addEventListener("click", () => write(letters + button.dataset.letter)));
  $("back").addEventListener("click", () => write(letters.slice(0, -1)));
  $("shuffle").addEventListener("click", () => {
    const mixed = [...letters];
    for (let i = mixed.length - 1; i > 0; i--) { const j = Math.floor(Math.random() * (i + 1)); [mixed[i], mixed[j]] = [mixed[j], mixed[i]]; }
    write(mixed.join(""));
  });
  document.querySelectorAll("[data-topic]").forEach(button => button.addEventListener("click", () => {
    const row = model.words[button.dataset.topic - 1];
    const draw = () => { let place = Math.random(), t = 0; while (t < row.length - 1 && (place -= row[t]) > 0) t++; return alphabet[t]; };
    write(Array.from({ length: model.longest }, draw).join(""));
  }));
  pointer("beliefs", true, x => { set("read", Math.max(0, Math.min(letters.length, Math.floor((x - box[0]) / box[1])))); soon(); });
})();
