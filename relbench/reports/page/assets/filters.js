// Which rows all tables show.

const FILTERS = { chosen: {}, listeners: [] };

function readFilters() {
  const form = document.getElementById("filters");
  FILTERS.chosen = {};
  for (const select of form?.querySelectorAll("select") ?? []) {
    if (select.value) FILTERS.chosen[select.name] = select.value;
  }
  const n = Object.keys(FILTERS.chosen).length;
  if (form) document.getElementById("filtered").textContent = n ? `(${n} set)` : "";
}

function setFilters(chosen) {
  for (const select of document.querySelectorAll("#filters select")) {
    if (select.name in chosen) {
      const known = [...select.options].some((option) => option.value === chosen[select.name]);
      select.value = known ? chosen[select.name] : "";
    }
  }
  filtersChanged();
}

function filtersChanged() {
  readFilters();
  for (const listener of FILTERS.listeners) listener();
}

/** Rows of a table that the chosen filters leave; a filter that none of its columns knows leaves all. */
function filteredRows(table) {
  const tests = [];
  for (const [name, value] of Object.entries(FILTERS.chosen)) {
    const columns = (table.filters[name] ?? []).map((key) => table.column(key));
    if (columns.length) tests.push(columns.map((column) => [column.numbers, column.shown.indexOf(value) + 1]));
  }
  const rows = [];
  for (let row = 0; row < table.n; row++) {
    if (tests.every((columns) => columns.some(([numbers, wanted]) => wanted && numbers[row] === wanted))) rows.push(row);
  }
  return rows;
}

function startFilters() {
  const form = document.getElementById("filters");
  if (!form) return;
  form.addEventListener("change", filtersChanged);
  form.addEventListener("reset", () => setTimeout(filtersChanged));
  form.addEventListener("submit", (event) => event.preventDefault());
  if (matchMedia("(max-width: 640px)").matches) form.querySelector("details").open = false;
  readFilters();
}
