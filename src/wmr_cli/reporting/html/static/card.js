// The card of one image: label, prediction, margin, weight, and a thumbnail if it was saved.

/** Show the image at this position of the rows; null shows an instruction. */
function showImage(position) {
  state.image = position;
  const model = state.models[state.detail];
  const canvas = byId("thumbnail");
  canvas.hidden = true;
  if (position === null || !model?.prediction) {
    byId("image").value = "";
    byId("card").textContent = "Point at an image, or enter its index.";
    return;
  }
  const margin = model.margin ? `, margin ${formatFixed(model.margin[position], 4)}` : "";
  const weight = model.weights(sliders.alpha.value, 1);
  const among = model.positions.indexOf(position);
  const relativeWeight = weight && among >= 0 ? `, weight ${formatFixed(weight[among], 2)} times the mean` : "";
  byId("image").value = String(model.index[position]);
  byId("card").textContent =
    `index ${model.index[position]}: label ${model.nameOf(model.label[position])}, ` +
    `predicted ${model.nameOf(model.prediction[position])}${margin}${relativeWeight}`;
  const tile = model.tiles?.positions.indexOf(position) ?? -1;
  if (tile >= 0) drawTile(canvas, model, tile, position);
}

/** Draw once the sheet is decoded, if the image is still selected by then. */
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
    canvas.setAttribute("aria-label", `adversarial image for ${name}`);
    canvas.hidden = false;
  });
}

/** Select the image of next smaller or larger margin. */
function stepByMargin(direction) {
  const model = state.models[state.detail];
  if (!model?.margin || !model.size) return;
  const order = model.cached("order", () => [...model.positions].sort((i, j) => model.margin[i] - model.margin[j] || i - j));
  const now = order.indexOf(state.image);
  selectImage(order[now < 0 ? 0 : Math.min(order.length - 1, Math.max(0, now + direction))]);
}

function selectImage(position) {
  showImage(position);
  updatePlots();
}
