// The heat map: masked relation × evaluated relation, from the headline rows of the table of changes.

const RANDOM = "random";
const ALL = "all";
// Numbers stand in the cells of maps that are not wider.
const WITH_NUMBERS = 16;
const MEASURES = {
  delta: { label: "change of recall", sign: 1 },
  loss: { label: "loss", sign: -1 },
  gain: { label: "gain", sign: 1 },
  logprob: { label: "change of log probability", sign: 1 },
};

class HeatMap {
  constructor(table) {
    this.table = table;
    this.rows = [];
    for (let row = 0; row < table.n; row++) if (table.text(row, "facts") === "headline") this.rows.push(row);
    this.choices = {
      method: this.distinct((row) => table.text(row, "method")).filter((name) => name !== RANDOM),
      k: this.distinct((row) => table.text(row, "k")),
      mode: this.distinct((row) => table.text(row, "mode")),
      positions: this.distinct((row) => table.text(row, "positions")),
      selection: this.distinct((row) => table.text(row, "selection")),
      mask_language: this.distinct((row) => table.text(row, "masked_language")),
      language: this.distinct((row) => table.text(row, "language")),
    };
    if (!this.choices.method.length) this.choices.method = [RANDOM];
    for (const key of ["mask_language", "language"]) {
      if (this.choices[key].length > 1) this.choices[key].push(ALL);
    }
    this.state = Object.fromEntries(Object.entries(this.choices).map(([key, values]) => [key, values[0] ?? null]));
    // Without a testable relation there is no change of recall to read.
    const testable = this.rows.some((row) => table.column("delta").value(row) !== null);
    this.state.measure = testable ? "delta" : "logprob";
    if (this.choices.language.includes(this.state.mask_language)) this.state.language = this.state.mask_language;
    this.state.k = this.telling() ?? this.state.k;
    this.box = document.getElementById("map-box");
    this.readout = document.getElementById("readout");
    this.tip = document.getElementById("tip");
    this.controls = document.getElementById("map-controls");
    this.controls.addEventListener("submit", (event) => event.preventDefault());
    this.box.addEventListener("keydown", (event) => this.move(event));
    this.box.addEventListener("scroll", () => this.hideTip());
    FILTERS.listeners.push(() => this.follow());
    this.draw();
  }

  distinct(key) {
    return [...new Set(this.rows.map(key).filter((value) => value !== null))];
  }

  /** The smallest size at which the first method's masks lose half of their own relations, else the largest. */
  telling() {
    const { table } = this;
    for (const k of this.choices.k) {
      const losses = this.rows
        .filter((row) => table.text(row, "on_target") === "yes" && table.text(row, "k") === k)
        .filter((row) => table.text(row, "method") === this.state.method && table.text(row, "selection") === this.state.selection)
        .map((row) => table.column("loss").value(row))
        .filter((loss) => loss !== null);
      if (losses.length && losses.reduce((sum, loss) => sum + loss, 0) / losses.length >= 0.5) return k;
    }
    return this.choices.k.at(-1);
  }

  /** Take over what was chosen for the tables. */
  follow() {
    for (const [name, value] of Object.entries(FILTERS.chosen)) {
      if (this.choices[name]?.includes(value)) this.state[name] = value;
    }
    this.draw();
  }

  drawControls() {
    const labels = {
      method: "method", k: "units", mode: "mode", positions: "positions", selection: "units are",
      mask_language: "mask’s language", language: "evaluated language",
    };
    const selects = Object.entries(this.choices)
      .filter(([, values]) => values.length > 1)
      .map(([key, values]) => makeSelect(key, labels[key], values.map((value) => [value, this.optionLabel(key, value)]), this.state[key], (event) => this.choose(key, event.target.value)));
    const measures = Object.entries(MEASURES).map(([key, { label }]) => [key, label]);
    const measure = makeSelect("measure", "colour", measures, this.state.measure, (event) => this.choose("measure", event.target.value));
    const focused = this.controls.contains(document.activeElement) ? document.activeElement.name : null;
    this.controls.replaceChildren(...selects, measure);
    if (focused) this.controls.elements[focused]?.focus();
  }

  optionLabel(key, value) {
    if (key !== "k") return value;
    const row = this.rows.find((one) => this.table.text(one, "k") === value && this.table.column("fraction").value(one) !== null);
    return row === undefined ? value : `${value} (${Number((100 * this.table.column("fraction").value(row)).toPrecision(3))} %)`;
  }

  choose(key, value) {
    this.state[key] = value;
    this.draw();
  }

  /** Rows and columns of the map: names, and for each cell the table's rows that it shows. */
  layout() {
    const { table, state } = this;
    const text = (row, key) => table.text(row, key);
    const chosen = this.rows.filter(
      (row) =>
        ["k", "mode", "positions", "selection"].every((key) => text(row, key) === state[key]) &&
        [state.language, null].concat(state.language === ALL ? [text(row, "language")] : []).includes(text(row, "language")),
    );
    const own = chosen.filter(
      (row) =>
        text(row, "method") === state.method &&
        text(row, "masked") !== null &&
        (state.mask_language === ALL || text(row, "masked_language") === state.mask_language),
    );
    const random = chosen.filter((row) => text(row, "method") === RANDOM && text(row, "masked") === null);
    const target = (row) => `${text(row, "masked")}@${text(row, "masked_language")}`;
    const evaluated = (row) => `${text(row, "relation")}@${text(row, "language")}`;
    const names = [...new Set(own.map(target))];
    // Masked relations first, in the order of the rows, so that the diagonal is one.
    const relations = names.map((name) => name.split("@")[0]);
    const place = (name) => {
      const exact = names.indexOf(name);
      const related = exact < 0 ? relations.indexOf(name.split("@")[0]) : exact;
      return related < 0 ? names.length : related;
    };
    const columns = [...new Set([...own, ...random].map(evaluated))];
    columns.sort((a, b) => place(a) - place(b));
    const cells = new Map();
    const put = (name, row) => {
      const key = `${name} ${evaluated(row)}`;
      cells.set(key, [...(cells.get(key) ?? []), row]);
    };
    for (const row of own) put(target(row), row);
    for (const row of random) put(RANDOM, row);
    const masks = new Set(random.map((row) => text(row, "treatment"))).size;
    return { names, columns, cells, randomMasks: random.length ? masks : 0 };
  }

  draw() {
    this.drawControls();
    this.hideTip();
    this.readout.textContent = "";
    const { names, columns, cells, randomMasks } = this.layout();
    const several = new Set([...names, ...columns].map((name) => name.split("@")[1])).size > 1;
    const label = (name) => {
      const [relation, language] = name.split("@");
      return inWords(relation) + (several ? ` (${language})` : "");
    };
    const all = [...names, ...(randomMasks ? [RANDOM] : [])];
    const values = [...cells.values()].map((rows) => this.valueOf(rows)).filter((value) => value !== null);
    this.scale = this.state.measure === "logprob" ? Math.max(...values.map(Math.abs), 1e-9) : 1;
    this.drawLegend();
    if (!columns.length) {
      this.box.replaceChildren(make("p", { class: "none" }, "No mask of this kind."));
      return;
    }
    const head = make("tr", {}, make("th", { class: "corner", scope: "col" }, "masked ↓  asked →"));
    for (const name of columns) head.append(make("th", { scope: "col", title: label(name) }, make("span", {}, label(name))));
    const body = make("tbody");
    for (const name of all) {
      const words = name === RANDOM ? `random masks (mean of ${randomMasks})` : label(name);
      const line = make("tr", { class: name === RANDOM && names.length ? "apart" : null }, make("th", { scope: "row", title: words }, words));
      for (const column of columns) line.append(make("td", {}, this.cell(name, column, cells.get(`${name} ${column}`))));
      body.append(line);
    }
    const table = make("table", { class: columns.length > WITH_NUMBERS ? "many" : null, "aria-label": this.title() }, make("thead", {}, head), body);
    this.box.replaceChildren(table);
    this.box.querySelector(".cell:not(.absent)")?.setAttribute("tabindex", "0");
  }

  title() {
    return `${MEASURES[this.state.measure].label}, ${this.state.method}, ${this.state.k} units`;
  }

  drawLegend() {
    const { sign } = MEASURES[this.state.measure];
    const end = twoDecimals(this.scale, sign > 0);
    document.getElementById("legend-low").textContent = sign > 0 ? `−${twoDecimals(this.scale)}` : end;
    document.getElementById("legend-high").textContent = sign > 0 ? end : "";
  }

  /** Mean of a measure over the table's rows that a cell shows; null where none has a value. */
  valueOf(rows) {
    const column = this.table.column(this.state.measure);
    const values = rows.map((row) => column.value(row)).filter((value) => value !== null);
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  }

  cell(name, column, rows) {
    if (!rows) return make("span", { class: "cell absent" }, "");
    const value = this.valueOf(rows);
    const measure = MEASURES[this.state.measure];
    const signed = this.state.measure === "delta" || this.state.measure === "logprob";
    const shown = value === null ? "–" : rows.length === 1 ? this.table.text(rows[0], this.state.measure) : twoDecimals(value, signed);
    const words = this.describe(name, column, rows, shown);
    const button = make("button", { type: "button", class: "cell", tabindex: "-1", "data-masked": name, "data-evaluated": column, "aria-label": words }, shown);
    if (shown.length > 5) button.classList.add("tight");
    if (name === column) button.classList.add("own");
    const testable = this.table.text(rows[0], "testable") === "yes";
    if (value === null || (!testable && this.state.measure !== "logprob" && this.state.measure !== "gain")) button.classList.add("untestable");
    else {
      const share = Math.min(1, Math.abs(value) / this.scale);
      button.style.setProperty("--side", measure.sign * value < 0 ? "var(--negative)" : "var(--positive)");
      button.style.setProperty("--share", `${Math.round(100 * share)}%`);
      button.classList.toggle("strong", share > 0.8);
      button.classList.toggle("medium", share > 0.62);
    }
    const show = () => this.showTip(button, words);
    button.addEventListener("mouseenter", show);
    button.addEventListener("focus", () => {
      this.box.querySelector(".cell[tabindex='0']")?.setAttribute("tabindex", "-1");
      button.setAttribute("tabindex", "0");
      show();
    });
    button.addEventListener("mouseleave", () => this.hideTip());
    button.addEventListener("blur", () => this.hideTip());
    button.addEventListener("click", () => {
      this.hideTip();
      const [relation, language] = column.split("@");
      openFacts(rows.map((row) => this.table.text(row, "treatment")), relation, language, "headline");
    });
    return button;
  }

  describe(name, column, rows, shown) {
    const [relation, language] = column.split("@");
    const masked = name === RANDOM ? `${rows.length} random masks, mean` : `mask of ${inWords(name.split("@")[0])} (${name.split("@")[1]})`;
    const lines = [`${masked}, on ${inWords(relation)} (${language})`];
    const measure = MEASURES[this.state.measure].label;
    if (rows.length > 1) return [...lines, `${measure} ${shown}`].join("\n");
    const [row] = rows;
    const text = (key) => this.table.column(key).label_of(row);
    const value = (key) => `${text(key)} ${this.table.text(row, `${key}_interval`) ?? ""}`.trim();
    const testable = this.table.text(row, "testable") === "yes";
    if (!testable) lines.push("not testable");
    else lines.push(`${measure} ${value(this.state.measure)}`);
    lines.push(`recall ${text("recall_before")} → ${text("recall_after")}, ${text("n")} facts`);
    lines.push(`${text("lost")} of ${text("right")} right ones lost, ${text("gained")} gained`);
    if (this.table.text(row, "p_adjusted")) lines.push(`p, corrected ${text("p_adjusted")}`);
    return lines.join("\n");
  }

  showTip(cell, words) {
    this.readout.textContent = words.replaceAll("\n", "; ");
    this.tip.textContent = words;
    this.tip.hidden = false;
    const at = cell.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const below = at.bottom + 8 + height < innerHeight;
    this.tip.style.left = `${Math.max(8, Math.min(at.left + at.width / 2 - width / 2, innerWidth - width - 8))}px`;
    this.tip.style.top = `${below ? at.bottom + 8 : Math.max(8, at.top - height - 8)}px`;
  }

  hideTip() {
    this.tip.hidden = true;
  }

  move(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };
    const step = steps[event.key];
    const cell = event.target.closest?.(".cell");
    if (!step || !cell) return;
    event.preventDefault();
    const line = cell.closest("tr");
    const lines = [...line.parentElement.rows];
    const clamp = (value, last) => Math.max(0, Math.min(last, value));
    const next = lines[clamp(lines.indexOf(line) + step[0], lines.length - 1)];
    const cells = [...next.querySelectorAll(".cell")];
    const target = cells[clamp([...line.querySelectorAll(".cell")].indexOf(cell) + step[1], cells.length - 1)];
    target.focus();
  }
}
