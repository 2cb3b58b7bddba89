// Where descent goes: the phase portrait.
"use strict";

(() => {
  const { $, picture, show, value, set, watch, tell, axes, line, dot, clipped, pointer } = explorer;
  const TIME = 40, MOST = 40000, LEAST = 4096, SIDE = 64, CROWD = 100; // with a large step the time is over before an end is in sight
  const COLOUR = { oracle: "a", mirror: "c", swapped: "b", neither: "d" };
  let c, alpha, path, ends, edge, run = 0, box, maps, crowd = [], crowds = 0;

  const field = picture("field", (pen, width, height, colours) => {
    box = [44, 26, width - 18, height - 44];
    const unit = { from: -1, to: 1, ticks: [-1, -0.5, 0, 0.5, 1] };
    maps = axes(pen, colours, box, { ...unit, title: "κ = ⟨k, k*⟩" }, { ...unit, title: "ν = ⟨v, v*⟩" });
    if (!c) return;
    const [X, Y] = maps;
    clipped(pen, box, () => basins(pen, X, Y, colours));
    arrows(pen, X, Y, colours);
    for (const one of crowd) {
      pen.strokeStyle = pen.fillStyle = colours[COLOUR[one.end]];
      pen.lineWidth = 1;
      line(pen, one.path.map(x => [X(x[0]), Y(x[1])]));
      dot(pen, X(one.path[0][0]), Y(one.path[0][1]), 2.5);
    }
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
  // Descent from a hundred starts that are uniform on the sphere, a few at a time.
  function* gather() {
    const random = attlas.randomly(1), quick = attlas.tabulated(c), steps = Math.min(2 * MOST, Math.max(LEAST, Math.ceil(TIME / alpha)));
    for (let number = 0; number < CROWD; number++) {
      let x = attlas.sphereStart(c.dim, random), next = 1;
      const one = { path: [x], end: "neither" };
      for (let step = 1; step <= steps && one.end === "neither"; step++) {
        x = attlas.step(quick, x, alpha);
        if (step >= next) { one.path.push(x); next = Math.max(step + 1, step * 1.1); }
        if (step % 64 === 0) one.end = attlas.ending(x);
        if (step % 2048 === 0) yield;
      }
      one.path.push(x);
      crowd.push(one);
      yield;
    }
  }
  function count() {
    const at = (...names) => crowd.filter(one => names.includes(one.end)).length;
    tell({ "crowd-ends": !value("many") ? "not drawn" : `${at("oracle", "mirror")} at the oracle or its mirror image, ${at("swapped")} swapped, ${at("neither")} at neither in time${crowd.length < CROWD ? `, of ${crowd.length} so far` : ""}` });
  }
  function assemble() {
    const mine = ++crowds, work = gather();
    crowd = [];
    delete $("crowd-ends").dataset.done;
    const go = () => {
      if (mine !== crowds) return;
      const until = performance.now() + 14;
      let done = false;
      while (!done && performance.now() < until) done = work.next().done;
      field();
      count();
      if (done) $("crowd-ends").dataset.done = "yes"; else requestAnimationFrame(go);
    };
    if (value("many")) go(); else count();
  }
  let before = "", beforeCrowd = "";
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
    const crowdKey = [c.lam, c.dim, c.length, c.gamma, value("many")].join();
    if (crowdKey !== beforeCrowd) { beforeCrowd = crowdKey; assemble(); }
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
