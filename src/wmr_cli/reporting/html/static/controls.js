// Controls of the settings: sliders over a list of values, checkboxes, select boxes.

/** Distinct values in increasing order. */
function sortedUnique(values) {
  return [...new Set(values)].sort((one, other) => one - other);
}

function roundTo(value, digits) {
  return Number(value.toPrecision(digits));
}

/** Values from `first` to `last` with equal ratios. */
function geometricSteps(first, last, steps) {
  return Array.from({ length: steps + 1 }, (_, i) => roundTo(first * (last / first) ** (i / steps), 2));
}

/** Even steps up to 4, equal ratios beyond, and every recorded alpha exactly. */
function alphaValues(recorded) {
  const most = Math.max(4, ...recorded);
  return sortedUnique([
    ...Array.from({ length: 81 }, (_, i) => i / 20),
    ...(most > 4 ? geometricSteps(4, 2 * most, 40) : []),
    ...recorded,
  ]);
}

function rhoValues(recorded) {
  return sortedUnique([0, ...geometricSteps(0.001, Math.max(2, 2 * Math.max(0, ...recorded)), 60), ...recorded]);
}

function temperatureValues() {
  return sortedUnique(Array.from({ length: 33 }, (_, i) => roundTo(2 ** ((i - 16) / 8), 3)));
}

/** A range input over a list of values, with a box for any other value and buttons for some. */
class Slider {
  constructor(id, describe, onChange) {
    this.range = document.getElementById(id);
    this.box = document.getElementById(`${id}-exact`);
    this.chips = document.getElementById(`${id}-chips`);
    this.describe = describe;
    this.onChange = onChange;
    this.range.addEventListener("input", () => this.set(this.values[this.range.valueAsNumber]));
    this.box.addEventListener("change", () => this.set(this.box.checkValidity() ? this.box.valueAsNumber : this.value));
  }

  /** Offer these values, with buttons for those in `marked`. */
  offer(values, marked, value) {
    this.values = values;
    this.marked = marked;
    this.range.min = 0;
    this.range.max = values.length - 1;
    this.range.step = 1;
    this.chips.replaceChildren(
      ...marked.map((one) => {
        const button = makeElement("button", String(one), { type: "button" });
        button.addEventListener("click", () => this.set(one));
        return button;
      }),
    );
    this.show(value);
  }

  set(value) {
    this.show(Number.isFinite(value) ? value : this.value);
    this.onChange();
  }

  show(value) {
    this.value = value;
    const distances = this.values.map((one) => Math.abs(one - value));
    this.range.value = distances.indexOf(Math.min(...distances));
    this.box.value = String(value);
    this.range.setAttribute("aria-valuetext", this.describe(value, this.marked.includes(value)));
    [...this.chips.children].forEach((button, i) => button.setAttribute("aria-pressed", String(this.marked[i] === value)));
  }
}

/** An element with text, which is never parsed as HTML, and attributes. */
function makeElement(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  return made;
}

/** Labelled checkboxes, all checked; `signs` are shown beside the names. */
function addCheckboxes(place, names, signs, onChange) {
  const boxes = names.map((name, i) => {
    const box = makeElement("input", "", { type: "checkbox" });
    box.checked = true;
    box.addEventListener("change", onChange);
    const label = makeElement("label");
    label.append(box, ...(signs ? [signs[i]] : []), makeElement("span", name));
    place.append(label);
    return box;
  });
  return boxes;
}

/** Options of a select box; the value of each is its number. */
function setOptions(select, names) {
  select.replaceChildren(...names.map((name, i) => makeElement("option", name, { value: String(i) })));
}
