// One word decides: a sentence to change, and where a trained softmax head looks.
"use strict";

// The sentence with the words of `slots`: its words, where the second part begins, and the place that decides.
attlas.arrange = (model, slots, order) => {
  const fill = text => text.replace(/\{(\w+)\}/g, (_, slot) => slots[slot]).split(" ").filter(word => word);
  const first = fill(model.first), second = fill(model.second[order]);
  return { words: first.concat(second), second: first.length, place: first.length + second.indexOf(slots.adjective) };
};
// Tokens, one a word; context(l, i) is what the l-th word's i-th coordinate has from being said here.
attlas.tokenise = (model, sentence, context = () => 0) => sentence.words.map((word, l) => model.vectors[word].map((x, i) =>
  x + (i === model.part && l >= sentence.second ? model.mean : 0) + model.context * context(l, i)));
attlas.attend = (model, tokens) => {
  const inner = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const scores = tokens.map(x => inner(x, model.k));
  const top = Math.max(...scores), powers = scores.map(score => Math.exp(score - top));
  const total = powers.reduce((a, b) => a + b), weights = powers.map(power => power / total);
  return {
    scores, weights,
    head: tokens.reduce((sum, x, l) => sum + weights[l] * inner(x, model.v), 0),
    linear: tokens.reduce((sum, x, l) => sum + inner(x, model.linear[l]), model.constant),
  };
};

(() => {
  const { $, value, watch, tell, data } = explorer;
  const model = data();
  let context = null;
  const gaussian = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  const signed = x => (x < 0 ? "−" : "+") + Math.abs(x).toFixed(2);
  const part = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });

  function answer(id, said) {
    const reach = 50 * Math.min(Math.abs(said) / 2.5, 1), bar = document.createElement("i");
    bar.className = said < 0 ? "bad" : "good";
    Object.assign(bar.style, { width: `${reach}%`, left: `${said < 0 ? 50 - reach : 50}%` });
    $(id).textContent = signed(said);
    $(id).nextElementSibling.replaceChildren(bar);
  }
  function changed() {
    const slots = Object.fromEntries(Object.keys(model.known).map(slot => [slot, value(slot)]));
    const sentence = attlas.arrange(model, slots, value("order"));
    const tokens = attlas.tokenise(model, sentence, context ? (l, i) => context[l][i] : undefined);
    const { scores, weights, head, linear } = attlas.attend(model, tokens), truth = tokens[sentence.place][model.value];
    $("said").replaceChildren(...sentence.words.map((word, l) => {
      const begins = l === 0 || l === sentence.second, ends = l === sentence.second - 1 || l === sentence.words.length - 1;
      const item = document.createElement("li"), bar = part("span", "");
      item.className = (l >= sentence.second ? "second" : "") + (l === sentence.place ? " decides" : "");
      bar.className = "bar";
      bar.append(document.createElement("i"));
      bar.firstChild.style.width = `${100 * weights[l]}%`;
      item.append(part("b", (begins ? word[0].toUpperCase() + word.slice(1) : word) + (ends ? "." : "")), bar,
        part("small", `${(100 * weights[l]).toFixed(1)} %`), part("small", scores[l].toFixed(1).replace("-", "−")));
      return item;
    }));
    answer("truth", truth);
    answer("head", head);
    answer("linear", linear);
    $("size").disabled = !model.second[value("order")].includes("{size}");
    const most = weights.indexOf(Math.max(...weights));
    tell({ status: `${context ? "In a context, as in training" : "Without context"}: the head has ${Math.round(100 * weights[most])} % of its attention on “${sentence.words[most]}”`
      + `${most === sentence.place ? ", which decides" : `; “${sentence.words[sentence.place]}” decides`}. It says ${signed(head)}, the word says ${signed(truth)}, linear regression ${signed(linear)}.` });
  }
  const soon = watch(changed);
  $("another").addEventListener("click", () => {
    for (const select of document.querySelectorAll(".controls select")) select.selectedIndex = Math.floor(Math.random() * select.options.length);
    soon();
  });
  $("again").addEventListener("click", () => { context = model.linear.map(row => row.map(gaussian)); soon(); });
  $("plain").addEventListener("click", () => { context = null; soon(); });
})();
