// One image: what is known of it, and its picture where there is one.

/** The card of the image at this position of the rows; none: what to do to get one. */
function show(position) {
  state.image = position;
  const model = state.models[state.looked];
  const canvas = at("picture");
  canvas.hidden = true;
  if (position === null || !model?.prediction) {
    at("image").value = "";
    at("card").textContent = "Point at an image, or type its index.";
    return;
  }
  const margin = model.margin ? `, margin ${fixed(model.margin[position], 4)}` : "";
  const weight = model.weights(sliders.alpha.value, 1);
  const among = model.positions.indexOf(position);
  const share = weight && among >= 0 ? `, weight ${fixed(weight[among], 2)} times the mean` : "";
  at("image").value = String(model.index[position]);
  at("card").textContent =
    `index ${model.index[position]}: label ${model.nameOf(model.label[position])}, ` +
    `seen as ${model.nameOf(model.prediction[position])}${margin}${share}`;
  const tile = model.tiles?.positions.indexOf(position) ?? -1;
  if (tile >= 0) drawTile(canvas, model, tile, position);
}

/** Once the sheet is decoded, if that image is still looked at by then. */
function drawTile(canvas, { tiles, name }, tile, position) {
  const image = state.sheets.get(tiles) ?? Object.assign(new Image(), { src: tiles.sheet });
  state.sheets.set(tiles, image);
  const { columns, width, height } = tiles;
  image.decode().then(() => {
    if (state.image !== position) return;
    canvas.width = width;
    canvas.height = height;
    canvas
      .getContext("2d")
      .drawImage(image, (tile % columns) * width, Math.floor(tile / columns) * height, width, height, 0, 0, width, height);
    canvas.setAttribute("aria-label", `the attacked image, as ${name} saw it`);
    canvas.hidden = false;
  });
}

/** The image whose margin is next below or above. */
function step(direction) {
  const model = state.models[state.looked];
  if (!model?.margin || !model.size) return;
  const order = model.once("order", () => [...model.positions].sort((i, j) => model.margin[i] - model.margin[j] || i - j));
  const now = order.indexOf(state.image);
  pick(order[now < 0 ? 0 : Math.min(order.length - 1, Math.max(0, now + direction))]);
}

function pick(position) {
  show(position);
  redraw();
}
