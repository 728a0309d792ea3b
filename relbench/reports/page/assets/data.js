"use strict";
// The page's data: tables packed column by column, and the answers that they rest on.

const DATA = JSON.parse(document.getElementById("data").textContent);

function bytesOf(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Integers of `pack_integers`, `pack_changes`. */
function integersOf(text, width, signed = false) {
  const { buffer } = bytesOf(text);
  if (signed) return new Int16Array(buffer);
  return width === 1 ? new Uint8Array(buffer) : width === 2 ? new Uint16Array(buffer) : new Uint32Array(buffer);
}

/** Bits of `pack_bits`, read from the byte at which their group starts. */
function bitsOf(bytes, start, n) {
  return Array.from({ length: n }, (_, i) => (bytes[start + (i >> 3)] >> (i & 7)) & 1);
}

class Column {
  constructor(packed) {
    Object.assign(this, packed);
    this.numeric = !["text", "flag"].includes(this.kind);
    this.named = /(^|_)(masked|relation|other)$/.test(this.key);
  }

  /** Number of each row's value: 0 for none, else its place among the sorted values. */
  get numbers() {
    if (!(this.index instanceof Uint8Array || this.index instanceof Uint16Array || this.index instanceof Uint32Array)) {
      this.index = integersOf(this.index.bytes, this.index.width);
    }
    return this.index;
  }

  text(row) {
    const number = this.numbers[row];
    return number ? this.shown[number - 1] : null;
  }

  /** For readers: relations in words, a dash for no value. */
  label_of(row) {
    const text = this.text(row);
    return text === null ? "–" : this.named ? inWords(text) : text;
  }

  value(row) {
    const number = this.numbers[row];
    return number ? this.values[number - 1] : null;
  }

  get constant() {
    const { numbers } = this;
    return numbers.every((number) => number === numbers[0]);
  }
}

class Table {
  constructor(packed) {
    Object.assign(this, packed);
    this.columns = packed.columns.map((column) => new Column(column));
    this.byKey = new Map(this.columns.map((column) => [column.key, column]));
  }

  column(key) {
    return this.byKey.get(key);
  }

  text(row, key) {
    return this.byKey.get(key)?.text(row) ?? null;
  }
}

const TABLES = new Map(DATA.tables.map((table) => [table.name, new Table(table)]));

function inWords(name) {
  return name.replaceAll("_", " ");
}

/** Two decimals as everywhere in the report: halves to the even digit, no zero before the point, a real minus. */
function twoDecimals(value, signed = false) {
  // Below 1e-9 is what sums of floating-point numbers left.
  const size = Math.abs(value) < 1e-9 ? 0 : Math.abs(value);
  let text;
  if (size > 0 && size < 0.005) {
    text = String(Number(size.toPrecision(2)));
    if (text.includes("e")) text = size.toFixed(12).replace(/0+$/, "");
  } else {
    const hundredths = size * 100;
    const half = (size * 8) % 1 === 0 && hundredths % 1 === 0.5;
    text = half ? ((Math.floor(hundredths) + (Math.floor(hundredths) % 2)) / 100).toFixed(2) : size.toFixed(2);
  }
  const sign = size === 0 ? "" : value < 0 ? "−" : signed ? "+" : "";
  return sign + text.replace(/^0\./, ".");
}

/** An element with attributes, properties of `on…`, and children; strings become text, never markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A labelled `<select>`; `options` are [value, label]. */
function makeSelect(name, label, options, chosen, onchange) {
  const select = make("select", { name, onchange });
  for (const [value, text] of options) select.append(make("option", { value }, text));
  select.value = chosen;
  return make("label", {}, label, " ", select);
}
