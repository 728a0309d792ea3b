// Tables that sort, filter and open what their rows are made of.

const FIRST_ROWS = 15;
const MORE_ROWS = 300;

class TableView {
  constructor(table, host) {
    this.table = table;
    this.sorted = null;
    this.shown = FIRST_ROWS;
    const intervals = new Map(table.columns.filter((c) => c.kind === "interval" && c.of).map((c) => [c.of, c]));
    const merged = new Set([...intervals.values()].filter((c) => table.column(c.of)));
    const alike = table.n > 1 ? table.columns.filter((c) => !merged.has(c) && c.constant) : [];
    const kept = table.columns.filter((c) => !merged.has(c) && !alike.includes(c));
    // A mask's name repeats what its other columns say: it comes last.
    this.columns = [...kept.filter((c) => c.key !== "treatment"), ...kept.filter((c) => c.key === "treatment")].map(
      (column) => ({ column, interval: intervals.get(column.key) ?? null }),
    );
    this.status = make("p", { class: "status", role: "status" });
    const everywhere = alike.filter((c) => c.numbers[0]).map((c) => `${c.label}: ${c.label_of(0)}`);
    if (everywhere.length) host.append(make("p", { class: "status alike" }, make("b", {}, "In every row "), everywhere.join("; ")));
    this.head = make("tr");
    this.body = make("tbody");
    if (this.opens) this.head.append(make("th", { class: "plain", scope: "col" }, table.masks ? "masks" : "facts"));
    for (const { column } of this.columns) this.head.append(this.headCell(column));
    this.more = make("button", { type: "button", class: "more", onclick: () => this.showMore() });
    const box = make("div", { class: "box", tabindex: "0", role: "region", "aria-label": table.title });
    box.append(make("table", { "aria-label": table.title }, make("thead", {}, this.head), this.body));
    host.append(this.status, box, this.more);
    FILTERS.listeners.push(() => this.refresh());
    this.refresh();
  }

  get opens() {
    return this.table.about !== null || (this.table.masks && TABLES.has("masks"));
  }

  headCell(column) {
    const button = make("button", { type: "button", onclick: () => this.sortBy(column) }, column.label);
    button.append(make("span", { class: "arrow", "aria-hidden": "true" }));
    return make(
      "th",
      { scope: "col", "aria-sort": "none", "data-key": column.key, class: column.numeric ? "num" : null },
      button,
    );
  }

  sortBy(column) {
    const descending = this.sorted?.column === column && !this.sorted.descending;
    this.sorted = { column, descending };
    for (const cell of this.head.querySelectorAll("[aria-sort]")) {
      const chosen = cell.dataset.key === column.key;
      cell.setAttribute("aria-sort", chosen ? (descending ? "descending" : "ascending") : "none");
    }
    this.refresh();
  }

  refresh() {
    this.rows = filteredRows(this.table);
    if (this.sorted) {
      const { numbers } = this.sorted.column;
      const sign = this.sorted.descending ? -1 : 1;
      // Rows without a value come last, whichever way the others are sorted.
      this.rows.sort((a, b) => {
        if (!numbers[a] || !numbers[b]) return (numbers[a] ? 0 : 1) - (numbers[b] ? 0 : 1) || a - b;
        return sign * (numbers[a] - numbers[b]) || a - b;
      });
    }
    this.body.replaceChildren();
    this.shown = 0;
    this.add(FIRST_ROWS);
  }

  showMore() {
    this.add(MORE_ROWS);
  }

  add(n) {
    const next = this.rows.slice(this.shown, this.shown + n);
    this.body.append(...next.map((row) => this.row(row)));
    this.shown += next.length;
    const left = this.rows.length - this.shown;
    this.more.hidden = !left;
    this.more.textContent = `Show ${Math.min(left, MORE_ROWS).toLocaleString("en")} more`;
    const count = this.rows.length.toLocaleString("en");
    const of = this.rows.length < this.table.n ? ` of ${this.table.n.toLocaleString("en")}` : "";
    this.status.textContent = `${count}${of} row${this.rows.length === 1 && !of ? "" : "s"}${this.table.note ? `. ${this.table.note}` : ""}`;
  }

  row(row) {
    const line = make("tr", { "data-row": row });
    const open = this.opens ? () => (this.table.masks ? this.openMasks(row) : this.openFacts(row)) : null;
    if (open) {
      const about = this.columns.slice(0, 4).map(({ column }) => column.label_of(row)).join(", ");
      const word = this.table.masks ? "masks" : "facts";
      line.append(make("td", {}, make("button", { type: "button", class: "open", "aria-label": `${word} of ${about}` }, word)));
      line.classList.add("opens");
      line.addEventListener("click", () => getSelection().isCollapsed && open());
    }
    for (const { column, interval } of this.columns) line.append(this.cell(row, column, interval));
    return line;
  }

  cell(row, column, interval) {
    const text = column.label_of(row);
    const kind = column.key === "treatment" ? "id" : column.numeric ? "num" : text.length > 40 ? "long" : null;
    const cell = make("td", { class: kind, dir: column.kind === "text" ? "auto" : null }, text);
    const bounds = interval?.text(row);
    if (bounds) cell.append(make("span", { class: "ci" }, bounds));
    return cell;
  }

  openFacts(row) {
    const [relation, language] = this.table.about.map((key) => this.table.text(row, key));
    const mask = this.table.column("treatment") ? [this.table.text(row, "treatment")] : [];
    const subset = this.table.name === "deltas" ? this.table.text(row, "facts") : mask.length ? "headline" : "all";
    openFacts(mask, relation, language, subset);
  }

  openMasks(row) {
    const chosen = {};
    for (const [name, keys] of Object.entries(this.table.filters)) chosen[name] = this.table.text(row, keys[0]) ?? "";
    if (chosen.mask_language === "all") chosen.mask_language = "";
    setFilters(chosen);
    document.getElementById("masks").scrollIntoView();
    document.querySelector("#masks .box").focus({ preventScroll: true });
  }
}
