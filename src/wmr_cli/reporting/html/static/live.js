// From the settings to the numbers and plots. Settings change often; what they touch is drawn once per frame.

const found = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);

const state = { panel: null, models: [], boxes: [], classBoxes: [], looked: 0, image: null, sheets: new Map(), panels: [] };
const sliders = {
  alpha: new Slider("alpha", (value, isStored) => `α ${value}${isStored ? ", recorded" : ""}`, changed),
  rho: new Slider("rho", (value, isStored) => `ρ ${value}${isStored ? ", recorded" : ""}`, changed),
  temperature: new Slider("temperature", (value) => `temperature ${value}`, changed),
};

const chosenModels = () => state.models.filter((_, i) => state.boxes[i].checked);
const chosenClasses = () => state.panel.classes.filter((_, i) => state.classBoxes[i].checked);
const settings = () => ({ alpha: sliders.alpha.value, rho: sliders.rho.value, temperature: sliders.temperature.value });

// --- panels, models and classes ---------------------------------------------------------------------------------------

function openPanel(number) {
  state.panel = found.panels[number];
  state.models = state.panels[number];
  const unique = (values) => sorted(values.filter((value) => value !== null));
  const alphas = unique(state.models.flatMap((model) => model.storedAlphas));
  const rhos = unique(state.models.flatMap((model) => model.dro.map((row) => row.rho)));
  sliders.alpha.offer(alphaValues(alphas), alphas, sliders.alpha.value ?? alphas.at(-1) ?? 1);
  sliders.rho.offer(rhoValues(rhos), rhos, sliders.rho.value ?? rhos[rhos.length >> 1] ?? 0.1);
  sliders.temperature.offer(temperatureValues(), [0.5, 1, 2], sliders.temperature.value ?? 1);
  at("temperature-field").hidden = !state.models.some((model) => model.logits);
  at("models").replaceChildren();
  state.boxes = checkboxes(
    at("models"),
    state.models.map((model) => model.name),
    state.models.map((model) => swatch(model.number)),
    chooseModels,
  );
  at("classes").replaceChildren();
  const names = state.panel.classes.map(({ label, name }) => (name === null ? String(label) : `${label} ${name}`));
  state.classBoxes = checkboxes(at("classes"), names, null, chooseClasses);
  at("classes-field").hidden = names.length < 2;
  at("panel-title").textContent = state.panel.title;
  offerLooked(-1);
  chooseClasses();
}

function chooseModels() {
  offerLooked(state.looked);
  changed();
}

/** Of the chosen models one is looked at closer: this one, or else the first that has margins, or the first. */
function offerLooked(wanted) {
  const numbers = state.models.map((_, i) => i).filter((i) => state.boxes[i].checked);
  options(
    at("looked"),
    state.models.map((model) => model.name),
  );
  [...at("looked").options].filter((option) => !numbers.includes(Number(option.value))).forEach((option) => option.remove());
  at("looked").disabled = !numbers.length;
  const now = numbers.includes(wanted) ? wanted : (numbers.find((i) => state.models[i].margin) ?? numbers[0] ?? -1);
  if (now !== wanted || now < 0) look(now);
  else at("looked").value = String(now);
}

function chooseClasses() {
  const classes = chosenClasses();
  const isWhole = classes.length === state.panel.classes.length;
  const labels = isWhole ? null : new Set(classes.map((one) => one.label));
  state.models.forEach((model) => model.choose(labels));
  at("classes-count").textContent = isWhole ? `all ${classes.length}` : `${classes.length} of ${state.panel.classes.length}`;
  changed();
}

function look(number) {
  state.looked = number;
  at("looked").value = String(number);
  document.querySelectorAll(".looked").forEach((place) => (place.textContent = state.models[number]?.name ?? ""));
  show(null);
}

// --- drawing ----------------------------------------------------------------------------------------------------------

let waiting = false;
/** The numbers in the next frame, the plots soon after: a slider stays smooth where plots are slow. */
function changed() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    numbers();
    soon();
  });
}

let pending = 0;
function soon() {
  pending ||= setTimeout(() => {
    pending = 0;
    redraw();
  });
}

/** Every plot that has something to show, each again only if something it shows has changed. */
function redraw() {
  if (!window.Plotly) return;
  const now = plots();
  now.forEach(({ name, isShown }) => (at(`figure-${name}`).hidden = !isShown));
  now.filter(({ isShown }) => isShown).forEach(update);
  listenToImages();
}

/** `key` is all that a plot shows but for `line`, where the present setting is marked. */
function plots() {
  const { alpha, rho, temperature } = settings();
  const chosen = chosenModels();
  const live = chosen.filter((model) => model.isLive && model.size);
  const scaled = live.filter((model) => model.logits);
  const fallen = chosen.filter((model) => model.right && model.size);
  const looked = state.models[state.looked];
  const classes = chosenClasses();
  const isThere = Boolean(looked?.right && looked.size);
  const [alphas, rhos] = [coarse(sliders.alpha, 4), coarse(sliders.rho, 3).filter((value) => value > 0)];
  const used = looked?.logits ? temperature : 1;
  const shared = [isDark(), at("panel").value, state.boxes.map((box) => box.checked), classes.map((one) => one.label)];
  const closer = [...shared, state.looked, alpha, used];
  const across = at("axis").value;
  return [
    {
      name: "alpha",
      isShown: live.length,
      key: [...shared, across],
      line: alpha,
      plot: () => plotAlpha(live, alphas, alpha, across),
    },
    {
      name: "temperature",
      isShown: scaled.length,
      key: [...shared, alpha],
      line: temperature,
      plot: () => plotTemperature(scaled, alpha, temperature),
    },
    { name: "ball", isShown: fallen.length, key: shared, line: Math.max(rho, rhos[0]), plot: () => plotBall(fallen, rhos, rho) },
    {
      name: "classes",
      isShown: isThere && classes.length > 1,
      key: closer,
      plot: () => plotClasses(looked, classes, alpha, used),
    },
    { name: "weights", isShown: isThere && looked.isLive, key: closer, plot: () => plotWeights(looked, alpha, used) },
    {
      name: "images",
      isShown: isThere && looked.margin,
      key: [...closer, state.image],
      plot: () => plotImages(looked, classes, alpha, used, state.image),
    },
  ];
}

const drawn = new Map();
function update({ name, key, line = null, plot }) {
  const [before, text] = [drawn.get(name), JSON.stringify(key)];
  drawn.set(name, { text, line });
  if (before?.text !== text) plot();
  else if (before.line !== line && at(`plot-${name}`).layout.shapes?.length) {
    Plotly.relayout(`plot-${name}`, { "shapes[0].x0": line, "shapes[0].x1": line });
  }
}

/** Some of a slider's values, and all that are marked. */
function coarse(slider, every) {
  return sorted([...slider.values.filter((_, i) => i % every === 0), ...slider.marked, slider.values.at(-1)]);
}

function paint() {
  at("theme").textContent = isDark() ? "Light" : "Dark";
  at("theme").setAttribute("aria-pressed", String(isDark()));
  document.querySelectorAll("#models .swatch").forEach((mark, i) => mark.style.setProperty("--of", colourOf(i)));
  if (state.panel) changed();
}

// --- start ------------------------------------------------------------------------------------------------------------

function listen() {
  at("panel").addEventListener("change", () => openPanel(Number(at("panel").value)));
  at("looked").addEventListener("change", () => {
    look(Number(at("looked").value));
    changed();
  });
  at("axis").addEventListener("change", changed);
  at("classes-all").addEventListener("click", () => checkAll(true));
  at("classes-none").addEventListener("click", () => checkAll(false));
  at("smaller").addEventListener("click", () => step(-1));
  at("larger").addEventListener("click", () => step(1));
  at("image").addEventListener("change", () => {
    const position = state.models[state.looked]?.index.indexOf(at("image").valueAsNumber) ?? -1;
    pick(position < 0 ? null : position);
  });
  at("settings").addEventListener("submit", (event) => event.preventDefault());
}

/** What every page can do, also one without a setting. */
function listenToReader() {
  at("theme").hidden = false;
  at("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    paint();
  });
  media.addEventListener("change", paint);
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
}

/** Paper is light, and shows what is folded away. */
function onPaper(isPaper) {
  const { dataset } = document.documentElement;
  if (isPaper) [dataset.before, dataset.theme] = [dataset.theme ?? "", "light"];
  else if (dataset.before) dataset.theme = dataset.before;
  else delete dataset.theme;
  document.querySelectorAll(isPaper ? ":is(#recorded, #comparison) details:not([open])" : "[data-unfolded]").forEach((one) => {
    one.open = isPaper;
    one.toggleAttribute("data-unfolded", isPaper);
  });
  paint();
  if (!state.panel) return;
  numbers();
  redraw();
}

function checkAll(isChecked) {
  state.classBoxes.forEach((box) => (box.checked = isChecked));
  chooseClasses();
}

/** Say how well the browser's numbers agree with the records; more than rounding apart is an alarm. */
function check() {
  const parts = state.panels.flat().map((model) => model.difference());
  const compared = parts.reduce((total, part) => total + part.compared, 0);
  const largest = Math.max(0, ...parts.map((part) => part.largest));
  at("checked").textContent = compared
    ? `${compared} recorded numbers were computed again from their rows in this browser; the largest difference is ${largest.toPrecision(1)}.`
    : "";
  if (largest > 1e-9) alarm("Some rows do not give the numbers of their record: one of the two has been changed.");
}

function alarm(text) {
  at("trouble").textContent = text;
  at("trouble").hidden = false;
}

async function start() {
  listenToReader();
  paint();
  const arrays = viewed(found.arrays, await unpacked("arrays"));
  state.panels = found.panels.map((panel) => panel.models.map((facts, i) => new Model(facts, i, arrays, panel.classes)));
  if (state.panels.length) await openLive();
  document.documentElement.dataset.ready = "yes";
}

async function openLive() {
  options(
    at("panel"),
    found.panels.map((panel) => panel.title),
  );
  at("panel-field").hidden = found.panels.length < 2;
  listen();
  const sizes = state.panels.map((models) => models.length);
  at("panel").value = String(sizes.indexOf(Math.max(...sizes)));
  openPanel(Number(at("panel").value));
  check();
  at("live").hidden = false;
  at("skip-settings").hidden = false;
  if (!at("plotly")) return;
  await loadScript("plotly");
  at("plots").hidden = false;
  redraw();
}

let isListening = false;
/** Once the plot is there: a pointer or a tap on an image shows it. */
function listenToImages() {
  if (isListening || !at("plot-images").on) return;
  isListening = true;
  ["plotly_hover", "plotly_click"].forEach((name) => at("plot-images").on(name, hovered));
}

function hovered(event) {
  const position = event.points[0]?.customdata;
  if (Number.isInteger(position)) show(position);
}

start().catch((error) => {
  alarm(
    `The sliders and plots do not work here: ${error.message}. A browser of 2024 or later has what they need; the recorded numbers are below.`,
  );
  throw error;
});
