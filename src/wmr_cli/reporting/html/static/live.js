// Update table and plots when a setting changes, at most once per frame.

const page = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// `models` has every record of the panel, `methods` the rows of the table: trainings, or each seed if `isSingle`
const state = {
  panel: null,
  models: [],
  methods: [],
  isSingle: false,
  boxes: [],
  classBoxes: [],
  detail: 0,
  image: null,
  sheets: new Map(),
  panels: [],
};
const sliders = {
  alpha: new Slider("alpha", (value, isStored) => `α ${value}${isStored ? ", recorded" : ""}`, scheduleUpdate),
  rho: new Slider("rho", (value, isStored) => `ρ ${value}${isStored ? ", recorded" : ""}`, scheduleUpdate),
  temperature: new Slider("temperature", (value) => `temperature ${value}`, scheduleUpdate),
};

const chosenMethods = () => state.methods.filter((_, i) => state.boxes[i].checked);
const chosenClasses = () => state.panel.classes.filter((_, i) => state.classBoxes[i].checked);
const settings = () => ({
  alpha: sliders.alpha.value,
  rho: sliders.rho.value,
  temperature: byId("calibrated").checked ? CALIBRATED : sliders.temperature.value,
});

// --- panels, methods and classes --------------------------------------------------------------------------------------

function openPanel(number) {
  state.panel = page.panels[number];
  state.models = state.panels[number];
  const unique = (values) => sortedUnique(values.filter((value) => value !== null));
  const alphas = unique(state.models.flatMap((model) => model.storedAlphas));
  const rhos = unique(state.models.flatMap((model) => model.dro.map((row) => row.rho)));
  sliders.alpha.offer(alphaValues(alphas), alphas, sliders.alpha.value ?? alphas.at(-1) ?? 1);
  sliders.rho.offer(rhoValues(rhos), rhos, sliders.rho.value ?? rhos[rhos.length >> 1] ?? 0.1);
  sliders.temperature.offer(temperatureValues(), [0.5, 1, 2], sliders.temperature.value ?? 1);
  byId("temperature-field").hidden = !state.models.some((model) => model.logits);
  byId("rho-field").hidden = !state.models.some((model) => model.correct);
  byId("seeds-field").hidden = !state.panel.methods.some((method) => method.seeds.length > 1);
  byId("classes").replaceChildren();
  const names = state.panel.classes.map(({ label, name }) => (name === null ? String(label) : `${label} ${name}`));
  state.classBoxes = addCheckboxes(byId("classes"), names, null, chooseClasses);
  byId("classes-field").hidden = names.length < 2;
  byId("panel-title").textContent = state.panel.title;
  state.detail = -1;
  offerMethods();
  chooseTemperature();
  chooseClasses();
}

/** Show trainings with their seeds pooled, or each seed by itself. */
function offerMethods() {
  state.isSingle = byId("seeds").checked && !byId("seeds-field").hidden;
  state.methods = makeMethods(state.panel, state.models, state.isSingle);
  byId("methods").replaceChildren();
  state.boxes = addCheckboxes(
    byId("methods"),
    state.methods.map((method) => method.name),
    state.methods.map(swatch),
    chooseMethods,
  );
  document.querySelectorAll("#recorded .seeds").forEach((part) => (part.open = state.isSingle));
  chooseMethods();
}

function chooseMethods() {
  offerDetailModels(state.detail);
  scheduleUpdate();
}

/** Offer the models of the selected methods for details: `wanted` stays, else the first with margins, else the first. */
function offerDetailModels(wanted) {
  const offered = new Set(chosenMethods().flatMap((method) => method.models));
  const numbers = [...state.models.keys()].filter((i) => offered.has(state.models[i]));
  setOptions(
    byId("detail-model"),
    state.models.map((model) => model.name),
  );
  [...byId("detail-model").options]
    .filter((option) => !numbers.includes(Number(option.value)))
    .forEach((option) => option.remove());
  byId("detail-model").disabled = !numbers.length;
  const now = numbers.includes(wanted) ? wanted : (numbers.find((i) => state.models[i].margin) ?? numbers[0] ?? -1);
  if (now !== wanted || now < 0) showDetails(now);
  else byId("detail-model").value = String(now);
}

function chooseClasses() {
  const classes = chosenClasses();
  const hasAllClasses = classes.length === state.panel.classes.length;
  const labels = hasAllClasses ? null : new Set(classes.map((one) => one.label));
  state.models.forEach((model) => model.selectClasses(labels));
  byId("classes-count").textContent = hasAllClasses
    ? `all ${classes.length}`
    : `${classes.length} of ${state.panel.classes.length}`;
  scheduleUpdate();
}

/** A fitted temperature takes the place of the slider. */
function chooseTemperature() {
  const isCalibrated = byId("calibrated").checked;
  document.querySelectorAll("#temperature-field :is(input[type=number], input[type=range], button)").forEach((control) => {
    control.disabled = isCalibrated;
  });
  const hasATr = state.models.some((model) => model.by_alpha.some((row) => row.a_tr));
  byId("curve-title").textContent = `${isCalibrated ? "A_cal" : "A_sa"} of all methods`;
  byId("curve-marks").textContent = isCalibrated ? "A_cal" : hasATr ? "A_sa (filled) and A_tr (open)" : "A_sa";
  scheduleUpdate();
}

function showDetails(number) {
  state.detail = number;
  byId("detail-model").value = String(number);
  document.querySelectorAll(".detail-name").forEach((place) => (place.textContent = state.models[number]?.name ?? ""));
  showImage(null);
}

// --- drawing ----------------------------------------------------------------------------------------------------------

let waiting = false;
/** Update the table in the next frame and the plots after it, so that a slider stays smooth. */
function scheduleUpdate() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    updateTable();
    schedulePlots();
  });
}

let pending = 0;
function schedulePlots() {
  pending ||= setTimeout(() => {
    pending = 0;
    updatePlots();
  });
}

/** Show every plot that has data, and redraw those whose data have changed. */
function updatePlots() {
  if (!window.Plotly) return;
  const now = listPlots();
  now.forEach(({ name, isShown }) => (byId(`figure-${name}`).hidden = !isShown));
  now.filter(({ isShown }) => isShown).forEach(updatePlot);
  addImageListeners();
}

/** `key` is everything that a plot depends on except `line`, the marked setting. */
function listPlots() {
  const { alpha, rho, temperature } = settings();
  const chosen = chosenMethods();
  const live = chosen.filter((method) => method.canComputeASa && method.size);
  const scaled = live.filter((method) => method.has((model) => model.logits));
  const attacked = chosen.filter((method) => method.has((model) => model.correct) && method.size);
  const detail = state.models[state.detail];
  const classes = chosenClasses();
  const canShowDetails = Boolean(detail?.correct && detail.size);
  const alphas = takeEvery(sliders.alpha, 4);
  const rhos = takeEvery(sliders.rho, 3).filter((value) => value > 0); // the axis is logarithmic
  const usedTemperature = detail?.logits ? temperature : 1;
  const shared = [isDark(), byId("panel").value, state.isSingle, state.boxes.map((box) => box.checked), classes.map((one) => one.label)];
  const detailKey = [...shared, state.detail, alpha, usedTemperature];
  const across = byId("axis").value;
  return [
    {
      name: "alpha",
      isShown: live.length,
      key: [...shared, across, temperature === CALIBRATED],
      line: alpha,
      plot: () => plotAlpha(live, alphas, alpha, across, temperature === CALIBRATED ? CALIBRATED : 1),
    },
    {
      name: "temperature",
      isShown: scaled.length,
      key: [...shared, alpha],
      line: sliders.temperature.value,
      plot: () => plotTemperature(scaled, alpha, sliders.temperature.value),
    },
    {
      name: "dro",
      isShown: attacked.length,
      key: shared,
      line: Math.max(rho, rhos[0]),
      plot: () => plotDro(attacked, rhos, rho),
    },
    {
      name: "classes",
      isShown: canShowDetails && classes.length > 1,
      key: detailKey,
      plot: () => plotClasses(detail, classes, alpha, usedTemperature),
    },
    {
      name: "weights",
      isShown: canShowDetails && detail.canComputeASa,
      key: detailKey,
      plot: () => plotWeights(detail, alpha, usedTemperature),
    },
    {
      name: "images",
      isShown: canShowDetails && detail.margin,
      key: [...detailKey, state.image],
      plot: () => plotImages(detail, classes, alpha, usedTemperature, state.image),
    },
  ];
}

const drawnPlots = new Map();
function updatePlot({ name, key, line = null, plot }) {
  const before = drawnPlots.get(name);
  const text = JSON.stringify(key);
  drawnPlots.set(name, { text, line });
  if (before?.text !== text) plot();
  else if (before.line !== line && byId(`plot-${name}`).layout.shapes?.length) {
    Plotly.relayout(`plot-${name}`, { "shapes[0].x0": line, "shapes[0].x1": line });
  }
}

/** Every n-th value of a slider, all marked values and the last one. */
function takeEvery(slider, every) {
  return sortedUnique([...slider.values.filter((_, i) => i % every === 0), ...slider.marked, slider.values.at(-1)]);
}

function applyTheme() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-pressed", String(isDark()));
  document
    .querySelectorAll("#methods .swatch")
    .forEach((mark, i) => mark.style.setProperty("--of", colourOf(state.methods[i])));
  if (state.panel) scheduleUpdate();
}

// --- start ------------------------------------------------------------------------------------------------------------

function addListeners() {
  byId("panel").addEventListener("change", () => openPanel(Number(byId("panel").value)));
  byId("detail-model").addEventListener("change", () => {
    showDetails(Number(byId("detail-model").value));
    scheduleUpdate();
  });
  byId("axis").addEventListener("change", scheduleUpdate);
  byId("seeds").addEventListener("change", offerMethods);
  byId("calibrated").addEventListener("change", chooseTemperature);
  byId("classes-all").addEventListener("click", () => checkAll(true));
  byId("classes-none").addEventListener("click", () => checkAll(false));
  byId("smaller").addEventListener("click", () => stepByMargin(-1));
  byId("larger").addEventListener("click", () => stepByMargin(1));
  byId("image").addEventListener("change", () => {
    const position = state.models[state.detail]?.index.indexOf(byId("image").valueAsNumber) ?? -1;
    selectImage(position < 0 ? null : position);
  });
  byId("settings").addEventListener("submit", (event) => event.preventDefault());
}

/** Listeners of every page, with or without records. */
function addPageListeners() {
  byId("theme").hidden = false;
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    applyTheme();
  });
  media.addEventListener("change", applyTheme);
  addEventListener("beforeprint", () => setPrintMode(true));
  addEventListener("afterprint", () => setPrintMode(false));
}

// pixels; as in page.css for print
const PAPER_WIDTH = 688; // of A4 without margins
const PAPER_HEIGHT = 240;
const PAPER_PADDING = 32; // of a figure, and half of the gap beside it
const WIDE_PLOTS = ["plot-weights", "plot-images"];

/** Print in the light theme with all tables unfolded. */
function setPrintMode(isPaper) {
  const { dataset } = document.documentElement;
  if (isPaper) [dataset.before, dataset.theme] = [dataset.theme ?? "", "light"];
  else if (dataset.before) dataset.theme = dataset.before;
  else delete dataset.theme;
  document.querySelectorAll(isPaper ? ":is(#recorded, #comparison) details:not([open])" : "[data-unfolded]").forEach((one) => {
    one.open = isPaper;
    one.toggleAttribute("data-unfolded", isPaper);
  });
  applyTheme();
  if (!state.panel) return;
  updateTable();
  updatePlots();
  document.querySelectorAll(".plot .main-svg:first-of-type").forEach((drawing) => fitPaper(drawing.closest(".plot"), isPaper));
}

/** Give a plot its width on paper, or again that of its place: the browser prints what has been drawn before. */
function fitPaper(place, isPaper) {
  const width = PAPER_WIDTH * (WIDE_PLOTS.includes(place.id) ? 1 : 0.5) - PAPER_PADDING;
  Plotly.relayout(place, isPaper ? { width, height: PAPER_HEIGHT } : { width: null, height: null, autosize: true });
}

function checkAll(isChecked) {
  state.classBoxes.forEach((box) => (box.checked = isChecked));
  chooseClasses();
}

/** Compare the computed numbers with the records; differences beyond rounding are a problem. */
function verifyRecords() {
  const parts = state.panels.flat().map((model) => model.compareWithRecord());
  const compared = parts.reduce((total, part) => total + part.compared, 0);
  const largest = Math.max(0, ...parts.map((part) => part.largest));
  byId("checked").textContent = compared
    ? `${compared} recorded numbers were recomputed from their rows in this browser; the largest difference is ${largest.toPrecision(1)}.`
    : "";
  if (largest > 1e-9) showProblem("Some numbers of a record do not follow from its rows: one of the two has been changed.");
}

function showProblem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = false;
}

function makeModels(panel, arrays) {
  const styles = new Map(panel.methods.flatMap(({ seeds, style }) => seeds.flat().map((number) => [number, style])));
  return panel.models.map((facts, i) => new Model(facts, styles.get(i), arrays, panel.classes));
}

async function start() {
  addPageListeners();
  applyTheme();
  const arrays = viewArrays(page.arrays, await decompress("arrays"));
  state.panels = page.panels.map((panel) => makeModels(panel, arrays));
  if (state.panels.length) await openLive();
  document.documentElement.dataset.ready = "yes";
}

async function openLive() {
  setOptions(
    byId("panel"),
    page.panels.map((panel) => panel.title),
  );
  byId("panel-field").hidden = page.panels.length < 2;
  addListeners();
  const sizes = state.panels.map((models) => models.length);
  byId("panel").value = String(sizes.indexOf(Math.max(...sizes)));
  openPanel(Number(byId("panel").value));
  verifyRecords();
  // beside the first table
  byId("numbers-note").after(byId("legend"));
  byId("live").hidden = false;
  byId("skip-settings").hidden = false;
  if (!byId("plotly")) return;
  await loadScript("plotly");
  byId("plots").hidden = false;
  updatePlots();
}

let isListening = false;
/** Show an image on hover or tap, once the plot exists. */
function addImageListeners() {
  if (isListening || !byId("plot-images").on) return;
  isListening = true;
  ["plotly_hover", "plotly_click"].forEach((name) => byId("plot-images").on(name, showHovered));
}

function showHovered(event) {
  const position = event.points[0]?.customdata;
  if (Number.isInteger(position)) showImage(position);
}

start().catch((error) => {
  showProblem(
    `The sliders and plots do not work in this browser: ${error.message}. They need a browser of 2024 or later. The recorded numbers are below.`,
  );
  throw error;
});
