// The settings: sliders over a list of values, checkboxes, and what they look like to a keyboard or a screen reader.

/** Values without repetition, from the least up. */
function sorted(values) {
  return [...new Set(values)].sort((one, other) => one - other);
}

function rounded(value, digits) {
  return Number(value.toPrecision(digits));
}

/** From `first` to `last` in `steps` equal ratios. */
function geometric(first, last, steps) {
  return Array.from({ length: steps + 1 }, (_, i) => rounded(first * (last / first) ** (i / steps), 2));
}

/** Even steps where alphas usually lie, ratios beyond, and every recorded one exactly. */
function alphaValues(recorded) {
  const most = Math.max(4, ...recorded);
  return sorted([...Array.from({ length: 81 }, (_, i) => i / 20), ...(most > 4 ? geometric(4, 2 * most, 40) : []), ...recorded]);
}

function rhoValues(recorded) {
  return sorted([0, ...geometric(0.001, Math.max(2, 2 * Math.max(0, ...recorded)), 60), ...recorded]);
}

function temperatureValues() {
  return sorted(Array.from({ length: 33 }, (_, i) => rounded(2 ** ((i - 16) / 8), 3)));
}

/** A range input over a list of values, a box to type any other value into, and buttons for some. */
class Slider {
  constructor(id, says, changed) {
    this.range = document.getElementById(id);
    this.box = document.getElementById(`${id}-exact`);
    this.chips = document.getElementById(`${id}-chips`);
    this.says = says;
    this.changed = changed;
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
        const button = element("button", String(one), { type: "button" });
        button.addEventListener("click", () => this.set(one));
        return button;
      }),
    );
    this.show(value);
  }

  set(value) {
    this.show(Number.isFinite(value) ? value : this.value);
    this.changed();
  }

  show(value) {
    this.value = value;
    const distances = this.values.map((one) => Math.abs(one - value));
    this.range.value = distances.indexOf(Math.min(...distances));
    this.box.value = String(value);
    this.range.setAttribute("aria-valuetext", this.says(value, this.marked.includes(value)));
    [...this.chips.children].forEach((button, i) => button.setAttribute("aria-pressed", String(this.marked[i] === value)));
  }
}

/** An element with text and attributes; text stays text. */
function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  return made;
}

/** A row of labelled checkboxes, all of them checked; `signs` stand beside the names. */
function checkboxes(place, names, signs, changed) {
  const boxes = names.map((name, i) => {
    const box = element("input", "", { type: "checkbox" });
    box.checked = true;
    box.addEventListener("change", changed);
    const label = element("label");
    label.append(box, ...(signs ? [signs[i]] : []), element("span", name));
    place.append(label);
    return box;
  });
  return boxes;
}

/** Names to choose from; the value of each is its number among all. */
function options(select, names) {
  select.replaceChildren(...names.map((name, i) => element("option", name, { value: String(i) })));
}
