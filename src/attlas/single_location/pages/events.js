// One event decides: records of a machine, and where a trained softmax head looks.
"use strict";

// Weights and prediction of a softmax head with the key `k` and the value `v`, on tokens [cycle][number].
attlas.look = (tokens, k, v) => {
  const inner = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const scores = tokens.map(x => inner(x, k)), top = Math.max(...scores), powers = scores.map(score => Math.exp(score - top));
  const total = powers.reduce((a, b) => a + b), weights = powers.map(power => power / total);
  return { weights, said: tokens.reduce((sum, x, l) => sum + weights[l] * inner(x, v), 0) };
};

(() => {
  const { picture, show, value, watch, tell, axes, line, clipped, data } = explorer;
  const model = data(), samples = model.knock.length, cycles = model.records[0].tokens.length;
  const scaled = (x, by) => x.map(each => each * by);
  const knock = [...scaled(model.knock, model.m), ...Array(samples).fill(0)], average = [...Array(samples).fill(0), ...Array(samples).fill(1 / samples)];
  let record, found;
  const whole = { from: 0, to: cycles, ticks: Array.from({ length: cycles + 1 }, (_, i) => i), text: () => "", title: "" };

  const shown = picture("strips", (pen, width, height, colours) => {
    if (!record) return;
    const left = 52, right = width - 12, room = (height - 120) / 5;
    const strips = [["vibration", 0, 24, 2 * room], ["pressure", samples, 52 + 2 * room, 2 * room], ["attention", null, 80 + 4 * room, room]];
    for (const [title, from, top, tall] of strips) {
      const box = [left, top, right, top + tall], bars = from === null;
      const y = bars ? { from: 0, to: 1, ticks: [0, 1], text: v => `${100 * v} %`, title } : { from: -5, to: 5, ticks: [-4, 0, 4], title };
      const [X, Y] = axes(pen, colours, box, bars ? { ...whole, ticks: Array.from({ length: cycles }, (_, i) => i + 0.5), text: v => String(v + 0.5), title: "cycle" } : whole, y);
      clipped(pen, box, () => {
        pen.globalAlpha = 0.2;
        pen.fillStyle = colours.b;
        pen.fillRect(X(record.place), top, X(1) - X(0), tall);
        pen.globalAlpha = 1;
        pen.fillStyle = colours.a;
        if (bars) found.weights.forEach((w, l) => pen.fillRect(X(l + 0.15), Y(w), X(0.7) - X(0), Y(0) - Y(w)));
        else {
          pen.strokeStyle = colours.ink;
          pen.lineWidth = 1.2;
          line(pen, record.tokens.flatMap((x, l) => x.slice(from, from + samples).map((v, i) => [X(l + i / samples), Y(v)])));
        }
      });
    }
  });
  const key = picture("key", (pen, width, height, colours) => {
    const box = [44, 26, width - 18, height - 44], by = record ? value("sharper") : 1;
    const [X, Y] = axes(pen, colours, box, { from: 0, to: samples - 1, ticks: [0, 5, 10, 15], title: "sample within a cycle" }, { from: -4, to: 4, ticks: [-4, -2, 0, 2, 4], title: "key" });
    clipped(pen, box, () => {
      pen.lineWidth = 2;
      pen.strokeStyle = colours.a;
      line(pen, model.k.slice(0, samples).map((v, i) => [X(i), Y(by * v)]));
      pen.strokeStyle = colours.ink;
      pen.setLineDash([6, 4]);
      line(pen, knock.slice(0, samples).map((v, i) => [X(i), Y(v)]));
      pen.setLineDash([]);
    });
  });
  watch(() => {
    record = model.records[value("record") - 1];
    found = attlas.look(record.tokens, scaled(model.k, value("sharper")), model.v);
    const best = attlas.look(record.tokens, knock, average);
    shown();
    key();
    tell({
      truth: show(record.target), head: show(found.said), best: show(best.said), share: `${Math.round(100 * found.weights[record.place])} %`,
      status: `In record ${value("record")} the knock is in cycle ${record.place + 1}, where the head has ${Math.round(100 * found.weights[record.place])} % of its attention. It says ${show(found.said)}; measured was ${show(record.target)}.`,
    });
  });
})();
