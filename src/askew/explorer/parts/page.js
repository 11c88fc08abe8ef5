// The controls, what tests and measurements ask, and the start.

// ---------------------------------------------------------------- controls

function option(select, value, text) {
  const node = document.createElement("option");
  node.value = value;
  node.textContent = text;
  select.append(node);
}

function build() {
  setText("version", content.askew);
  for (const [key, mode] of Object.entries(modes)) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    const text = document.createElement("span");
    Object.assign(input, { type: "radio", name: "mode", value: key, checked: key === "model", disabled: !mode.divergence });
    text.textContent = mode.label;
    if (!mode.divergence) label.title = "Needs data: write the page with points.";
    input.addEventListener("change", () => setMode(key));
    label.append(input, text);
    element("modes").append(label);
  }
  if (!modes.mahalanobis.divergence) modes.model.note += " Mahalanobis needs data: write the page with points.";
  document.body.classList.toggle("unlabelled", !content.labels);
  document.body.classList.toggle("named", Boolean(content.names));
  if (content.symmetric) modes.model.note += " It is symmetric: D(x, c) = D(c, x), so both balls are one.";
  showMode();
  const slices = !scene.domain.sums_to_one;
  if (scene.principal) option(element("across"), "principal", scene.principal.shares ? "principal directions" : "all distributions");
  if (slices) {
    scene.features.forEach((name, k) => {
      option(element("across"), String(k), name);
      option(element("up"), String(k), name);
    });
  }
  const flat = scene.dim === 2 && slices;
  if (flat) element("across").value = "0";
  element("up").value = slices ? "1" : "";
  element("plane-box").hidden = flat || (!scene.points && !slices);
  option(element("held"), "mean", scene.points ? "the mean of the data" : "the middle");
  if (scene.points) {
    content.classes.forEach((name, k) => option(element("held"), `class ${k}`, `the mean of ${name}`));
    option(element("held"), "row", "a data point");
    for (let i = 0; i < scene.n; i++) option(element("row"), String(i), nameOf(i));
  }
  element("held-row").hidden = !scene.points;
  if (!flat) {
    setText("held-note", slices ? `A plane through the space of ${scene.dim} features. Features that it does not vary have the values of that point.` : "");
    if (scene.points) setText("projection", `Data points are projected onto the plane; divergences use all ${scene.dim} features. A point may lie inside a ball and yet be far from c.`);
  }
  for (const id of ["count-row", "checks-row"]) element(id).hidden = !scene.points;
  buildClasses();
}

function showMode() {
  setText("mode-note", modes[state.mode].note);
  document.body.classList.toggle("symmetric", symmetric());
  const [usual, other] = symmetric() ? ["forth", "asymmetry"] : ["asymmetry", "forth"];
  if (element("colour").value === other) element("colour").value = usual;
}

function buildClasses() {
  if (!content.labels && !content.training) return;
  element("classes").hidden = false;
  const add = (glyph, variable, text) => {
    const item = document.createElement("span");
    const sign = document.createElement("span");
    sign.textContent = glyph;
    sign.style.color = `var(${variable})`;
    item.append(sign, text);
    element("classes").append(item);
  };
  content.classes.forEach((name, k) => add(GLYPHS[looks[k].shape], `--class-${looks[k].colour + 1}`, name));
  if (content.training) for (const [glyph, text] of [["○", "training"], ["●", "held out"]]) add(glyph, "--faint", text);
  if (content.labels?.some((label) => !classNumber.has(label))) add("●", "--other", "other classes");
}

function setMode(key) {
  state.mode = key;
  showMode();
  chooseField();
}

// ---------------------------------------------------------------- for tests and measurements

// Who waits for the fine grid.
const waiting = [];

window.askewExplorer = {
  // Resolves once the fine grid is there and drawn.
  ready: () => new Promise((tell) => (finer ? waiting.push(tell) : requestAnimationFrame(() => requestAnimationFrame(tell)))),
  // What is shown now.
  now: () => ({ ...seen, near: seen.near && { first: [...seen.near.first], second: [...seen.near.second], inside: seen.near.inside }, c: state.c, x: state.x, mode: state.mode, limits: plane.limits, pixels: picture.toPixels(state.c), box: picture.box }),
  // D(x, y) and D(y, x) of rows of points, and embedding, phi and its gradient for each x, as the page computes them; for
  // its own model, for "euclidean" or "mahalanobis", or for any model that is described like its own.
  evaluate(x, y, model = "model") {
    const dim = x[0].length;
    const divergence = Divergence.described(modes[model]?.description ?? model, dim);
    const [first, second] = [x, y].map((rows) => Float64Array.from(rows.flat()));
    const { embeddings, values, gradients, width } = divergence.profile(first, x.length);
    divergence.refer(second.slice(0, dim));
    const rows = (numbers) => Array.from({ length: x.length }, (_, i) => Array.from(numbers.subarray(i * width, (i + 1) * width)));
    const [forth, back] = [divergence.pairs(first, second, x.length), divergence.pairs(second, first, x.length)];
    return { forth: Array.from(forth), back: Array.from(back), embeddings: rows(embeddings), values: Array.from(values), gradients: rows(gradients) };
  },
  // D between all pairs of three points, as the page computes it on the plane through them.
  onPlane(points, model = "model") {
    const [origin, one, two] = points.map((point) => Float64Array.from(point));
    const minus = (point) => point.map((x, j) => x - origin[j]);
    const through = new Plane(origin, minus(one), minus(two), null, null, null);
    const divergence = Divergence.described(modes[model]?.description ?? model, origin.length).onPlane(through);
    divergence.refer(Float64Array.of(0.3, 0.3));
    const three = divergence.profile(Float64Array.of(0, 0, 1, 0, 0, 1), 3);
    return [0, 1, 2].map((i) => Array.from(divergence.both(three, three, i, new Float64Array(3), new Float64Array(3))[1]));
  },
  // Move c around for some frames: frames a second that were seen, and milliseconds that one takes to compute.
  async measure(frames = 60) {
    await this.ready();
    const [home, [left, right, bottom, top]] = [state.c, plane.limits];
    const next = () => new Promise(requestAnimationFrame);
    await next();
    let busy = 0;
    const began = performance.now();
    for (let i = 0; i < frames; i++) {
      const angle = (2 * Math.PI * i) / frames;
      const from = performance.now();
      moveCentre([home[0] + 0.2 * Math.cos(angle) * (right - left), home[1] + 0.2 * Math.sin(angle) * (top - bottom)]);
      asked = true;
      draw();
      asked = false;
      busy += performance.now() - from;
      await next();
    }
    const seconds = (performance.now() - began) / 1000;
    state.c = home;
    request();
    return { grid: field.size, width: field.profile.width, frames, framesPerSecond: frames / seconds, millisecondsPerFrame: busy / frames };
  },
};

build();
picture.resize();
listen();
choosePlane();
