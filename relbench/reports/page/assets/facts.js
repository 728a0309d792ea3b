// The facts that a number is made of, each with its answer before and after.

const SUBSETS = {
  headline: { label: "not copyable from the subject", keep: (fact) => !fact.copyable },
  seen: { label: "these, answer among the scored facts", keep: (fact) => !fact.copyable && fact.seen },
  unseen: { label: "these, answer not among them", keep: (fact) => !fact.copyable && !fact.seen },
  all: { label: "all", keep: () => true },
};
const OUTCOMES = {
  lost: "right → wrong",
  gained: "wrong → right",
  kept: "right, still right",
  wrong: "wrong, still wrong",
};
const NO_CHANGE = -32768;

/** Number of a concept in the data; −1 where its answers are not in the page. */
function conceptNumber(relation, language) {
  return DATA.facts.concepts.findIndex((one) => one.relation === relation && one.language === language);
}

/** A concept's facts without a mask. */
function factsOf(number) {
  const one = DATA.facts.concepts[number];
  const n = one.fact.length;
  const [copyable, seen, right] = [one.copyable, one.seen, one.right].map((text) => bitsOf(bytesOf(text), 0, n));
  const logprob = integersOf(one.logprob, 2, true);
  return one.fact.map((id, i) => ({
    id,
    subject: one.subject[i],
    prompt: one.prompt[i],
    answer: one.answer[i],
    copyable: copyable[i],
    seen: seen[i],
    before: right[i],
    logprob: logprob[i],
    saidBefore: DATA.facts.strings[one.said[i]] ?? null,
    after: null,
    change: null,
    saidAfter: null,
    outcome: right[i] ? "kept" : "wrong",
  }));
}

/** The same under a mask; null where its answers are not in the page. */
function answersOf(id, number) {
  const mask = DATA.facts.masks[id];
  const place = mask?.concepts.indexOf(number) ?? -1;
  if (place < 0) return null;
  let byte = 0;
  let first = 0;
  for (const earlier of mask.concepts.slice(0, place)) {
    const n = DATA.facts.concepts[earlier].fact.length;
    byte += (n + 7) >> 3;
    first += n;
  }
  const facts = factsOf(number);
  const after = bitsOf(bytesOf(mask.right), byte, facts.length);
  const changes = mask.change ? integersOf(mask.change, 2, true) : null;
  facts.forEach((fact, i) => {
    fact.after = after[i];
    fact.change = changes ? changes[first + i] : null;
    fact.outcome = fact.before ? (fact.after ? "kept" : "lost") : fact.after ? "gained" : "wrong";
  });
  for (const [concept, i, string] of mask.said ?? []) {
    if (concept === number) facts[i].saidAfter = DATA.facts.strings[string];
  }
  return facts;
}

function openFacts(masks, relation, language, subset) {
  const dialog = document.getElementById("facts");
  const state = { mask: masks[0] ?? null, subset, outcome: "" };
  document.getElementById("facts-title").textContent = `Facts of ${inWords(relation)} (${language})`;
  const mask = document.getElementById("facts-mask");
  mask.textContent = masks.length === 1 ? `under the mask ${masks[0]}` : "";
  mask.hidden = masks.length !== 1;
  const controls = document.getElementById("facts-controls");
  const update = (event) => {
    state[event.target.name] = event.target.value;
    showFacts(state, conceptNumber(relation, language));
  };
  const all = Object.entries(SUBSETS).map(([name, { label }]) => [name, label]);
  controls.replaceChildren(
    ...(masks.length > 1 ? [makeSelect("mask", "mask", masks.map((id) => [id, id]), state.mask, update)] : []),
    makeSelect("subset", "facts", all, subset, update),
  );
  if (masks.length) {
    const outcomes = [["", "all"], ...Object.entries(OUTCOMES)];
    controls.append(makeSelect("outcome", "answers", outcomes, "", update));
  }
  showFacts(state, conceptNumber(relation, language));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

function showFacts(state, number) {
  const summary = document.getElementById("facts-summary");
  const host = document.getElementById("facts-table");
  const found = number < 0 ? null : state.mask === null ? factsOf(number) : answersOf(state.mask, number);
  if (!found) {
    summary.textContent = "These answers are not in the page; samples.jsonl beside it has them.";
    host.replaceChildren();
    return;
  }
  const facts = found.filter(SUBSETS[state.subset].keep);
  summary.textContent = summarise(facts, state.mask !== null);
  const order = Object.keys(OUTCOMES);
  const shown = facts.filter((fact) => !state.outcome || fact.outcome === state.outcome);
  shown.sort((a, b) => order.indexOf(a.outcome) - order.indexOf(b.outcome));
  host.replaceChildren(factTable(shown, state.mask !== null));
}

function share(n, of) {
  return of ? `${twoDecimals(n / of)} (${n} of ${of})` : "–";
}

function summarise(facts, masked) {
  const n = facts.length;
  const count = (outcome) => facts.filter((fact) => fact.outcome === outcome).length;
  const before = facts.filter((fact) => fact.before).length;
  if (!masked) return `Recall ${share(before, n)}.`;
  const [lost, gained] = [count("lost"), count("gained")];
  const changes = facts.map((fact) => fact.change).filter((change) => change !== null && change !== NO_CHANGE);
  const mean = changes.reduce((sum, change) => sum + change, 0) / (100 * changes.length);
  const logprob = changes.length ? ` Mean change of log probability ${twoDecimals(mean, true)}.` : "";
  return (
    `Recall ${share(before, n)} before, ${share(before - lost + gained, n)} after. ` +
    `Loss ${share(lost, before)}, gain ${share(gained, n - before)}.${logprob}`
  );
}

function factTable(facts, masked) {
  const any = (key) => facts.some((fact) => fact[key] !== null);
  const hundredths = (value, signed) => (value === null || value === NO_CHANGE ? "–" : value === 0 && signed ? "0" : twoDecimals(value / 100, signed));
  const columns = [
    ["subject", (fact) => fact.subject, "text", (fact) => fact.subject],
    ["answer", (fact) => fact.answer, "text", (fact) => fact.answer],
    masked
      ? ["before → after", (fact) => OUTCOMES[fact.outcome], `outcome`, (fact) => Object.keys(OUTCOMES).indexOf(fact.outcome)]
      : ["answer is", (fact) => (fact.before ? "right" : "wrong"), "outcome", (fact) => -fact.before],
    ["log probability before", (fact) => hundredths(fact.logprob, false), "num", (fact) => fact.logprob],
    ...(masked && any("change") ? [["its change", (fact) => hundredths(fact.change, true), "num", (fact) => fact.change]] : []),
    ...(any("saidBefore") ? [["says before", (fact) => fact.saidBefore ?? "–", "said", (fact) => fact.saidBefore ?? ""]] : []),
    ...(any("saidAfter") ? [["says after", (fact) => fact.saidAfter ?? "–", "said", (fact) => fact.saidAfter ?? ""]] : []),
    ...(any("prompt") ? [["prompt", (fact) => fact.prompt, "long", (fact) => fact.prompt]] : []),
    ["fact", (fact) => fact.id, "id", (fact) => fact.id],
  ];
  if (!facts.length) return make("p", { class: "none" }, "None.");
  const body = make("tbody");
  const fill = (list) =>
    body.replaceChildren(
      ...list.map((fact) =>
        make(
          "tr",
          { "data-fact": fact.id, "data-outcome": fact.outcome },
          ...columns.map(([, text, kind]) =>
            make("td", { class: kind === "outcome" && masked ? `outcome ${fact.outcome}` : kind, dir: "auto" }, text(fact)),
          ),
        ),
      ),
    );
  const head = make("tr");
  for (const [label, , kind, key] of columns) {
    const button = make("button", { type: "button" }, label, make("span", { class: "arrow", "aria-hidden": "true" }));
    const cell = make("th", { scope: "col", "aria-sort": "none", class: kind === "num" ? "num" : null }, button);
    button.addEventListener("click", () => {
      const descending = cell.getAttribute("aria-sort") === "ascending";
      for (const other of head.children) other.setAttribute("aria-sort", "none");
      cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const sign = descending ? -1 : 1;
      fill([...facts].sort((a, b) => sign * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0)));
    });
    head.append(cell);
  }
  fill(facts);
  return make("div", { class: "box", tabindex: "0", role: "region", "aria-label": "Facts" }, make("table", {}, make("thead", {}, head), body));
}

function startFacts() {
  const dialog = document.getElementById("facts");
  document.getElementById("facts-close").addEventListener("click", () => dialog.close());
  // A click beside the dialog closes it.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}
