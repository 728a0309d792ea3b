"use strict";

// Sorting, filtering and opening of rows. Without this script the pages still show everything: names are links to
// the pages of their submissions.

const rows = [...document.querySelectorAll("tbody tr[data-model], [data-row]")];
const form = document.querySelector(".filters");

function speaks(element, key, wanted) {
  const value = element.dataset[key] ?? "";
  return key === "language" ? value.split(" ").includes(wanted) : value === wanted;
}

function choices() {
  return [...form.querySelectorAll("select")].map((select) => [select.dataset.filter, select.value]);
}

function filter() {
  const wanted = choices().filter(([, value]) => value !== "");
  let shown = 0;
  for (const row of rows) {
    const fits = wanted.every(([key, value]) => speaks(row, key, value));
    row.hidden = !fits;
    shown += fits;
    const detail = row.nextElementSibling;
    if (detail?.classList.contains("detail")) detail.hidden = !fits;
  }
  for (const chart of document.querySelectorAll("figure[data-language]")) {
    chart.hidden = !wanted.every(([key, value]) => key !== "language" || speaks(chart, key, value));
    const method = Object.fromEntries(wanted).method;
    for (const line of chart.querySelectorAll("g[data-method]")) {
      line.classList.toggle("faint", method !== undefined && line.dataset.method !== method);
    }
  }
  for (const board of document.querySelectorAll("section.board:not([data-row])")) {
    board.hidden = ![...board.querySelectorAll("tbody tr[data-model]")].some((row) => !row.hidden);
  }
  form.querySelector(".count").value = `${shown} of ${rows.length} shown`;
}

function remember() {
  const chosen = choices().filter(([, value]) => value !== "");
  history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
}

function recall() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  for (const select of form.querySelectorAll("select")) {
    const value = chosen.get(select.dataset.filter);
    if (value !== null && [...select.options].some((option) => option.value === value)) select.value = value;
  }
}

function compare(kind) {
  if (kind === "text") return (a, b) => a.localeCompare(b, "en");
  return (a, b) => Number(a) - Number(b);
}

function sort(heading) {
  const table = heading.closest("table");
  const column = heading.cellIndex;
  const descending = heading.getAttribute("aria-sort") === "ascending";
  for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const order = compare(heading.dataset.sort);
  const body = table.tBodies[0];
  const keyed = [...body.rows]
    .filter((row) => !row.classList.contains("detail"))
    .map((row) => [row.cells[column].dataset.value, row, row.nextElementSibling]);
  keyed.sort(([a], [b]) => {
    // What has no value stays at the end, whichever way it is sorted.
    if (a === "" || b === "") return (a === "") - (b === "");
    return descending ? order(b, a) : order(a, b);
  });
  for (const [, row, next] of keyed) {
    body.append(row);
    if (next?.classList.contains("detail")) body.append(next);
  }
}

function open(link) {
  const row = link.closest("tr, [data-row]");
  const isOpen = link.getAttribute("aria-expanded") === "true";
  link.setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) {
    row.querySelector(":scope > .detail")?.remove();
    if (row.nextElementSibling?.classList.contains("detail")) row.nextElementSibling.remove();
    return;
  }
  const content = document.getElementById(link.dataset.opens).content.cloneNode(true);
  const method = row.dataset.method;
  if (method !== undefined) {
    for (const part of content.querySelectorAll("[data-only]")) if (part.dataset.only !== method) part.remove();
  }
  let detail;
  if (row.tagName === "TR") {
    detail = document.createElement("tr");
    const cell = document.createElement("td");
    cell.colSpan = row.cells.length;
    cell.append(content);
    detail.append(cell);
    row.after(detail);
  } else {
    detail = document.createElement("div");
    detail.append(content);
    row.append(detail);
  }
  detail.classList.add("detail");
  copies(detail);
}

function copies(place) {
  for (const button of place.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        // Where the clipboard is closed to pages, the text is selected instead.
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
    });
  }
}

for (const heading of document.querySelectorAll("th[data-sort]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...heading.childNodes);
  button.addEventListener("click", () => sort(heading));
  heading.append(button);
}

for (const link of document.querySelectorAll("a.open")) {
  link.setAttribute("role", "button");
  link.setAttribute("aria-expanded", "false");
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(link);
  });
  link.addEventListener("keydown", (event) => {
    if (event.key !== " ") return;
    event.preventDefault();
    open(link);
  });
}

if (form !== null && rows.length > 0) {
  form.hidden = false;
  recall();
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", () => {
    filter();
    remember();
  });
  addEventListener("hashchange", () => {
    recall();
    filter();
  });
  filter();
}
copies(document);
