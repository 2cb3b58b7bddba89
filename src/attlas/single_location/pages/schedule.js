// Figure 3 of the paper, live: descent from many random starts, with a sharpness that shrinks or not.
"use strict";

(() => {
  const { $, picture, show, superscript, value, watch, tell, axes, line, dot, clipped } = explorer;
  const COLOUR = { oracle: "a", mirror: "a", swapped: "b", neither: "d" };
  const RECORDS = 120, ORACLE = [1, 1, 0, 0, 0];
  let task, runs = [], steps = 0, at = 0, every = 1, levels = [], number = 0;

  const stepAxis = () => ({ from: 0, to: steps || 1, ticks: [0, 0.5, 1].map(share => share * steps), text: step => step >= 1000 ? `${show(step / 1000)}k` : show(step), title: "step t" });
  const constantsAt = step => attlas.constants({ ...task, lam: attlas.sharpness(value("first"), value("rate"), step) });
  const families = () => [["neither", "d"], ["swapped", "b"], ["oracle", "a"]];
  const isAt = (run, family) => family === run.end || (family === "oracle" && run.end === "mirror");

  // Curves of all runs of one family after another, so that few failures are seen over many successes.
  function curves(pen, colours, X, Y, of) {
    for (const [family, colour] of families()) {
      pen.strokeStyle = colours[colour];
      pen.globalAlpha = 0.75;
      pen.lineWidth = family === "oracle" ? 1 : 1.6;
      for (const run of runs) if (isAt(run, family)) line(pen, run.path.map(of(X, Y)));
      pen.globalAlpha = 1;
    }
  }
  const excess = picture("excess", (pen, width, height, colours) => {
    const box = [52, 26, width - 22, height - 44];
    const [X, Y] = axes(pen, colours, box, stepAxis(), { from: 1e-4, to: 10, log: true, ticks: [1e-4, 1e-3, 1e-2, 0.1, 1, 10], text: x => `10${superscript(Math.round(Math.log10(x)))}`, title: "risk minus the oracle's" });
    if (!runs.length) return;
    clipped(pen, box, () => {
      curves(pen, colours, X, Y, (toX, toY) => p => [toX(p.step), toY(Math.max(p.excess, 1e-5))]);
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 1.5;
      pen.setLineDash([6, 4]);
      line(pen, levels.filter(p => p.swapped > 0).map(p => [X(p.step), Y(p.swapped)]));
      pen.setLineDash([]);
    });
  });
  const plane = picture("plane", (pen, width, height, colours) => {
    const box = [44, 26, width - 22, height - 44], unit = { from: -1, to: 1, ticks: [-1, -0.5, 0, 0.5, 1] };
    const [X, Y] = axes(pen, colours, box, { ...unit, title: "κ = ⟨k, k*⟩" }, { ...unit, title: "ν = ⟨v, v*⟩" });
    curves(pen, colours, X, Y, (toX, toY) => p => [toX(p.x[0]), toY(p.x[1])]);
    for (const run of runs) {
      pen.fillStyle = colours[COLOUR[run.end]];
      dot(pen, X(run.x[0]), Y(run.x[1]), 3);
    }
  });
  const aligned = picture("aligned", (pen, width, height, colours) => {
    const box = [44, 26, width - 22, height - 44];
    const [X, Y] = axes(pen, colours, box, stepAxis(), { from: 0, to: 1, ticks: [0, 0.5, 1], title: "|κ|, the place" });
    clipped(pen, box, () => curves(pen, colours, X, Y, (toX, toY) => p => [toX(p.step), toY(Math.abs(p.x[0]))]));
  });

  function note(c) {
    const least = attlas.risk(c, ORACLE);
    levels.push({ step: at, swapped: attlas.risk(c, attlas.swapped(c)) - least });
    for (const run of runs) {
      run.end = attlas.ending(run.x);
      run.path.push({ step: at, x: run.x, excess: attlas.risk(c, run.x) - least });
    }
  }
  function report() {
    const count = family => runs.filter(run => isAt(run, family)).length, c = constantsAt(at), said = at < steps ? "At" : "After";
    tell({
      status: `${said} step ${show(at)}: ${count("oracle")} of ${runs.length} runs are at the oracle or its mirror image, ${count("swapped")} at the swapped point, ${count("neither")} at neither. The sharpness is ${show(c.lam)}.`,
      "share-oracle": `${count("oracle")} of ${runs.length}`, "share-swapped": `${count("swapped")} of ${runs.length}`,
      "risk-oracle": show(attlas.risk(c, ORACLE)), "risk-swapped": show(attlas.risk(c, attlas.swapped(c))), last: show(attlas.sharpness(value("first"), value("rate"), steps)),
    });
  }
  const paint = () => { excess(); plane(); aligned(); };
  function go(mine) {
    if (mine !== number) return;
    const until = performance.now() + 16, alpha = value("alpha");
    while (at < steps && performance.now() < until) {
      const c = constantsAt(at);
      for (const run of runs) run.x = attlas.step(c, run.x, alpha);
      at += 1;
      if (at % every === 0) note(constantsAt(at));
    }
    paint();
    if (at < steps) requestAnimationFrame(() => go(mine));
    else { report(); $("excess").dataset.done = "yes"; }
    if (at >= steps / 4 && at < steps / 4 + 400) report();
  }
  watch(() => {
    task = { dim: value("dim"), length: value("length"), gamma: Math.SQRT1_2 };
    delete $("excess").dataset.done;
    steps = Math.round(value("time") / value("alpha"));
    every = Math.max(1, Math.round(steps / RECORDS));
    at = 0;
    levels = [];
    const random = attlas.randomly(value("draw"));
    runs = Array.from({ length: value("starts") }, () => ({ x: attlas.sphereStart(task.dim, random), path: [], end: "neither" }));
    note(constantsAt(0));
    report();
    go(++number);
  });
})();
