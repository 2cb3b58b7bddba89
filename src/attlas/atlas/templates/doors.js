"use strict";
// The pictures of the doors move: each computes what its map is about. Who prefers less motion sees the figures.

const attlas = {};
addEventListener("load", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const inks = () => (dark.matches ? ["#5cb8ee", "#ff9a5c", "#3fcf9f", "#5c5c5c"] : ["#0072B2", "#D55E00", "#009E73", "#dddddd"]);
  let state = 7;
  const random = () => { state = (1103515245 * state + 12345) % 2147483648; return state / 2147483648; };

  const scenes = {
    // Heads on the manifold, moved by gradient flow of the exact risk, to the oracle or its mirror image.
    "single-location": () => {
      if (!attlas.velocity) return null;
      const c = attlas.constants({ lam: 0.1, dim: 400, length: 10, gamma: Math.SQRT1_2 });
      const fresh = () => ({ x: 2 * random() - 1, y: 2 * random() - 1, age: 90 * random() });
      const heads = Array.from({ length: 160 }, fresh);
      return (pen, width, height, [a, b]) => {
        const side = Math.min(width, height) - 8, left = (width - side) / 2, top = 4;
        for (const head of heads) {
          const v = attlas.velocity(c, [head.x, head.y, 0, 0, 0]);
          const from = [left + (head.x + 1) / 2 * side, top + (1 - head.y) / 2 * side];
          head.x = Math.max(-1, Math.min(1, head.x + 0.06 * v[0]));
          head.y = Math.max(-1, Math.min(1, head.y + 0.06 * v[1]));
          pen.fillStyle = head.x + head.y > 0 ? b : a;
          pen.beginPath();
          pen.arc(...from, 2.2, 0, 7);
          pen.fill();
          if (++head.age > 110) Object.assign(head, fresh(), { age: 0 });
        }
      };
    },
    // Attention on three of 24 places as their score grows: softmax of the score on the relevant ones.
    "sparse-variables": () => {
      let time = 0;
      const relevant = [4, 11, 18], places = 24;
      return (pen, width, height, [a, , , line]) => {
        const score = 3.2 * (1 - Math.cos(time += 0.02)), most = Math.exp(score), total = places - 3 + 3 * most;
        for (let t = 0; t < places; t++) {
          const weight = (relevant.includes(t) ? most : 1) / total, tall = weight * 3 * (height - 14), step = (width - 20) / places;
          pen.fillStyle = relevant.includes(t) ? a : line;
          pen.fillRect(10 + t * step, height - 6 - tall, step - 3, Math.max(1.5, tall));
        }
      };
    },
    // The posterior of three topics as letters arrive, by Bayes' rule, and again for a new topic.
    "latent-posterior": () => {
      const laws = [[0.36, 0.18, 0.1, 0.1, 0.1, 0.16], [0.1, 0.05, 0.27, 0.27, 0.15, 0.16], [0.14, 0.07, 0.1, 0.1, 0.43, 0.16]], prior = [0.5, 0.3, 0.2];
      const draw = (law) => { let u = random(), i = 0; while (i < law.length - 1 && u > law[i]) u -= law[i++]; return i; };
      let path = [prior], topic = draw(prior), wait = 0;
      return (pen, width, height, [a, b, c]) => {
        if (++wait % 9 === 0) {
          if (path.length > 40) { path = [prior]; topic = draw(prior); } else {
            const letter = draw(laws[topic]), next = path[path.length - 1].map((p, z) => p * laws[z][letter]), sum = next[0] + next[1] + next[2];
            path.push(next.map((p) => p / sum));
          }
        }
        [a, b, c].forEach((ink, z) => {
          pen.strokeStyle = ink;
          pen.lineWidth = z === topic ? 3 : 1.5;
          pen.beginPath();
          path.forEach((belief, n) => pen.lineTo(10 + n * (width - 20) / 40, height - 8 - belief[z] * (height - 16)));
          pen.stroke();
        });
      };
    },
    // Two heads on two informative tokens by online descent, which moves two small matrices: how much of either value each reads.
    "several-locations": () => {
      if (!attlas.run) return null;
      const task = { signals: [4, 4], lam: 1, length: 6, unit: false }, dim = 100;
      let run = null, paths = [], wait = 0, number = 0;
      return (pen, width, height, [a, b, , line]) => {
        const side = height - 20, at = (x, y) => [width / 2 + (x - 0.5) * side * 0.8, height / 2 - (y - 0.5) * side * 0.8];
        if (!run || wait > 50) {
          const draws = attlas.source(++number);
          run = attlas.run(task, dim, 2 / dim, 1600, 8, attlas.start(task, dim, 0.1, [[0, 0], [0, 0]], draws), draws, 320);
          paths = [[], []];
          wait = 0;
        }
        const { value } = run.next();
        if (value) paths.forEach((path, h) => path.push(at(value.u[2 * h + 1][1], value.u[2 * h + 1][3]))); else wait += 1;
        pen.strokeStyle = line;
        pen.lineWidth = 2;
        for (const goal of [at(1, 0), at(0, 1)]) { pen.beginPath(); pen.arc(...goal, 10, 0, 7); pen.stroke(); }
        paths.forEach((path, h) => {
          pen.strokeStyle = pen.fillStyle = h ? b : a;
          pen.beginPath();
          for (const point of path) pen.lineTo(...point);
          pen.stroke();
          pen.beginPath();
          pen.arc(...path[path.length - 1], 5, 0, 7);
          pen.fill();
        });
      };
    },
  };

  const AHEAD = { "several-locations": 110, "sparse-variables": 130, "latent-posterior": 200 }; // frames after which there is something to see
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const [name, make] of Object.entries(scenes)) {
    const image = document.querySelector(`img[src="pictures/${name}.svg"]`), draw = image && make();
    if (!draw) continue;
    const canvas = document.createElement("canvas");
    canvas.className = "living";
    const { width, height } = image.getBoundingClientRect(), ratio = Math.max(1, window.devicePixelRatio || 1);
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    image.replaceWith(canvas);
    for (let n = AHEAD[name] || 0; n > 0; n--) draw(canvas.getContext("2d"), width, height, inks());
    let seen = false;
    const frame = () => {
      const pen = canvas.getContext("2d");
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      pen.lineJoin = "round";
      draw(pen, width, height, inks());
      if (seen && !document.hidden) setTimeout(() => requestAnimationFrame(frame), 40);
    };
    new IntersectionObserver(([entry]) => { const was = seen; seen = entry.isIntersecting; if (seen && !was) frame(); }).observe(canvas);
    document.addEventListener("visibilitychange", () => { if (seen && !document.hidden) frame(); });
  }
});
