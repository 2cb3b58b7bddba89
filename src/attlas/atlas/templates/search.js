"use strict";
// Words as they are searched for: both spellings, plurals, symbols by name, and words that mean nearly the same.

const finding = (() => {
  const GREEK = { "λ": "lambda", "γ": "gamma", "κ": "kappa", "ν": "nu", "θ": "theta", "η": "eta", "ρ": "rho", "ζ": "zeta", "ε": "epsilon", "α": "alpha", "σ": "sigma", "τ": "tau" };
  const IDLE = new Set("a an and are as at be by can do does for from how i in is it its of on or that the this to was what when where which who why with you".split(" "));
  const ALIKE = [
    "fail stall swapped wrong lose astray", "descent gradient training optimization", "lambda sharpness", "gamma spread temperature", "epsilon noise", "overlap kappa nu theta eta rho",
    "generalization sample capacity bound", "covering cover capacity", "transformer head layer attention", "softmax normalized", "posterior bayes bayesian", "latent topic mixture", "length sequence context",
    "sparse boolean bit", "kernel cme nadaraya watson", "convergence converge tend arrive", "initialization start", "schedule anneal decay shrink", "saddle stationary minimum landscape", "pretraining pretrain transfer",
  ].map((line) => line.split(" "));
  // One form for all spellings of a word.
  const fold = (word) => word
    .replace(/isation/g, "ization").replace(/ise(d|s|r)?$/, "ize$1").replace(/ising$/, "izing").replace(/yse/g, "yze").replace(/our(s|ed|ing)?$/, "or$1").replace(/(.{3,}[^s])s$/, "$1");
  const words = (text) => text.toLowerCase().replace(/[α-ω]/g, (sign) => ` ${GREEK[sign] || sign} `).split(/[^\p{L}\p{N}]+/u).filter(Boolean).map(fold);
  const alike = (word) => [word, ...ALIKE.filter((group) => group.map(fold).some((other) => other === word || (word.length > 4 && other.startsWith(word)))).flat().map(fold)];
  const asked = (text) => { const every = words(text), said = every.filter((word) => !IDLE.has(word)); return said.length ? said : every; };
  // How well a text answers: for each word asked for 3 if it is there, 1 if one that means nearly the same is.
  function score(query, text) {
    let total = 0, missing = 0;
    for (const word of query) {
      if (text.includes(` ${word}`)) total += 3;
      else if (alike(word).some((other) => text.includes(` ${other}`))) total += 1;
      else missing += 1;
    }
    return { total, missing };
  }
  return { asked, score, text: (raw) => ` ${words(raw).join(" ")}` };
})();
