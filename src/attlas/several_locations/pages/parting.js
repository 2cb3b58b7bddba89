// Heads that part: the pictures. The formulas are in several_locations.js.
"use strict";

(() => {
  const { $, picture, show, value, set, watch, tell, axes, line, dot, clipped, pointer } = explorer;
  const TIME = 24, KEPT = 60, OTHERS = 24, POINTS = 400, LOW = -0.5, HIGH = 1.5, INKS = ["a", "b", "c"];
  let path, others = [], maps, box, work = 0;

  const at = (u, h) => [u[2 * h + 1][1], u[2 * h + 1][3]];
  const field = picture("field", (pen, width, height, colours) => {
    box = [44, 26, width - 18, height - 44];
    const unit = { from: LOW, to: HIGH, ticks: [-0.5, 0, 0.5, 1, 1.5] };
    maps = axes(pen, colours, box, { ...unit, title: "⟨v, v₁*⟩" }, { ...unit, title: "⟨v, v₂*⟩" });
    if (!path) return;
    const [X, Y] = maps, heads = path[0].u.length / 2;
    pen.strokeStyle = colours.quiet;
    pen.lineWidth = 1.25;
    for (const [x, y] of [[1, 0], [0, 1]]) { pen.beginPath(); pen.arc(X(x), Y(y), 11, 0, 2 * Math.PI); pen.stroke(); }
    clipped(pen, box, () => {
      pen.globalAlpha = 0.45;
      for (const u of others) for (let h = 0; h < heads; h++) { pen.fillStyle = colours[INKS[h]]; dot(pen, ...pixel(at(u.last, h)), 3); }
      pen.globalAlpha = 1;
      for (let h = 0; h < heads; h++) {
        const points = path.map(p => pixel(at(p.u, h)));
        pen.strokeStyle = colours.paper; pen.lineWidth = 5; line(pen, points);
        pen.strokeStyle = colours[INKS[h]]; pen.lineWidth = 2.25; line(pen, points);
        pen.fillStyle = colours[INKS[h]];
        dot(pen, ...points[points.length - 1], 5);
        dot(pen, ...points[0], 7);
        pen.fillStyle = colours.paper;
        dot(pen, ...points[0], 4);
      }
    });
  });
  const pixel = ([x, y]) => [maps[0](x), maps[1](y)];
  const along = picture("along", (pen, width, height, colours) => {
    const area = [44, 26, width - 18, height - 44], last = path ? path[path.length - 1].step : 1, top = path ? Math.max(2, ...path.map(p => p.risk)) : 2;
    const ticks = [0, 1, 2, 3, 4].map(k => Math.round(k * last / 4)), high = Math.min(top, 4);
    const [X, Y] = axes(pen, colours, area, { from: 0, to: last, ticks, title: "steps" }, { from: 0, to: high, ticks: high > 2.5 ? [0, 1, 2, 3, 4].filter(t => t <= high) : [0, 0.5, 1, 1.5, 2], title: "risk, and how far the heads have parted" });
    if (!path) return;
    clipped(pen, area, () => {
      pen.globalAlpha = 0.35;
      pen.lineWidth = 1;
      pen.strokeStyle = colours.d;
      for (const other of others) line(pen, other.risks.map((y, k) => [X(other.steps[k]), Y(y)]));
      pen.globalAlpha = 1;
      pen.lineWidth = 2;
      [["ink", [], p => p.risk], ["c", [5, 4], p => attlas.parted(p.u)]].forEach(([colour, dash, of]) => {
        pen.strokeStyle = colours[colour];
        pen.setLineDash(dash);
        line(pen, path.map(p => [X(p.step), Y(of(p))]));
      });
      pen.setLineDash([]);
    });
  });

  function changed() {
    const task = { signals: [value("first"), value("second")], lam: value("lam"), length: value("length"), unit: value("norms") === "unit" };
    const heads = value("heads"), dim = value("dim"), alpha = value("rate") / dim, steps = Math.round(TIME / alpha);
    const fixed = attlas.source(7), points = Array.from({ length: POINTS }, () => attlas.sequence(task, 4 + 2 * heads, fixed));
    const places = [[value("ax"), value("ay")], [value("bx"), value("by")], [-value("ax"), value("by")]].slice(0, heads);
    const follow = (number, kept) => {
      const random = attlas.source(1000003 * number + 17), u = attlas.start(task, dim, value("size"), places, random);
      return [...attlas.run(task, dim, alpha, steps, value("batch"), u, random, kept)].map(p => ({ ...p, risk: attlas.risk(task, p.u, points) }));
    };
    path = follow(value("run"), KEPT);
    const mine = ++work, wanted = value("others") ? OTHERS : 0;
    others = [];
    field();
    along();
    const best = points.reduce((sum, x) => sum + (attlas.bayes(task, x) - attlas.target(task, x)) ** 2, 0) / POINTS, last = path[path.length - 1];
    const apart = attlas.parted(last.u), finite = Number.isFinite(last.risk);
    const words = !finite ? "has diverged" : heads < 2 ? "is over: one head, which cannot part" : apart > 0.5 ? "has parted: one head for each informative token" : last.risk < 1.5 ? "has not parted: heads share the tokens" : "is still on the plateau";
    const say = () => {
      const done = others.length === OTHERS, count = others.filter(o => attlas.parted(o.last) > 0.5).length;
      tell({
        status: `After ${show(last.step)} steps of size ${show(alpha)} the run ${words}. Risk ${show(last.risk)}.`,
        "risk-end": show(last.risk), "risk-bayes": show(best), parted: show(apart),
        share: wanted ? `${count} of ${others.length}${done ? "" : " so far"}` : "not run",
      });
    };
    say();
    const more = () => {
      if (mine !== work || others.length === wanted) return;
      const other = follow(1000 + others.length, 15);
      others.push({ last: other[other.length - 1].u, steps: other.map(p => p.step), risks: other.map(p => p.risk) });
      field();
      along();
      say();
      requestAnimationFrame(more);
    };
    more();
  }
  const soon = watch(changed);
  // A press takes the start of the head that is nearest.
  pointer("field", false, (x, y) => {
    const [left, top, right, bottom] = box, on = (v, from, to) => Math.max(LOW, Math.min(HIGH, Math.round((LOW + (v - from) / (to - from) * (HIGH - LOW)) * 20) / 20));
    const place = [on(x, left, right), on(y, bottom, top)], far = name => Math.hypot(value(`${name}x`) - place[0], value(`${name}y`) - place[1]);
    const name = value("heads") > 1 && far("b") < far("a") ? "b" : "a";
    set(`${name}x`, place[0]);
    set(`${name}y`, place[1]);
    soon();
  });
})();
