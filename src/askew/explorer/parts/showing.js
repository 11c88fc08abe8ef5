// The plane, the field on it, and one picture of both for each change.

// ---------------------------------------------------------------- plane and field

function heldPoint() {
  const choice = element("held").value;
  if (choice === "row" && scene.points) {
    const i = Number(element("row").value);
    return scene.points.slice(i * scene.dim, (i + 1) * scene.dim);
  }
  if (!choice.startsWith("class ")) return scene.mean.slice();
  const name = content.classes[Number(choice.slice(6))];
  const members = content.labels.flatMap((label, i) => (label === name ? [i] : []));
  return Float64Array.from(scene.mean, (_, j) => members.reduce((sum, i) => sum + scene.points[i * scene.dim + j], 0) / members.length);
}

function choosePlane() {
  const across = element("across").value;
  const principal = across === "principal";
  element("up-row").hidden = principal;
  element("row-row").hidden = element("held").value !== "row";
  const held = heldPoint();
  if (principal) plane = principalPlane(scene, held);
  else {
    const first = Number(across);
    let second = Number(element("up").value);
    if (second === first) {
      second = (first + 1) % scene.dim;
      element("up").value = String(second);
    }
    plane = featurePlane(scene, first, second, held);
  }
  plane.key = [scene.whole, across, element("up").value, element("held").value, element("row").value].join(" ");
  plane.places = Array.from({ length: scene.n }, (_, i) => plane.place(scene.points, i));
  picture.setLimits(plane.limits);
  chooseField();
  element("whole-row").hidden = !scene.whole && !plane.places.some(isFar);
  const [left, right, bottom, top] = plane.limits;
  const inside = (place) => !isFar(place);
  if (!state.c || !inside(state.c) || !field.has(state.c)) {
    state.c = start();
    state.x = null;
  }
  if (!state.x || !inside(state.x)) state.x = [state.c[0] + 0.22 * (right - state.c[0]), state.c[1] + 0.22 * (top - state.c[1])];
}

// Whether a place lies outside of the picture.
function isFar([u, v]) {
  const [left, right, bottom, top] = plane.limits;
  return u < left || u > right || v < bottom || v > top;
}

// Where c begins: in the middle of the first class, or of all, if the divergence is defined there.
function start() {
  const [left, right, bottom, top] = plane.limits;
  const rows = plane.places.filter((_, i) => !content.labels || content.labels[i] === content.classes[0]);
  const mean = [0, 1].map((k) => rows.reduce((sum, place) => sum + place[k], 0) / rows.length);
  const middle = [(left + right) / 2, (bottom + top) / 2];
  const usual = [left + 0.4 * (right - left), bottom + 0.4 * (top - bottom)];
  const candidates = [rows.length ? mean : usual, usual, middle, ...plane.places];
  return candidates.find((place) => field.has(place)) ?? middle;
}

function chooseField() {
  const { divergence } = modes[state.mode];
  const key = `${state.mode} ${plane.key}`;
  finer = null;
  if (!fields.has(key)) {
    const coarse = new Field(divergence, plane, COARSE);
    coarse.work(Infinity);
    const typical = coarse.typical();
    // From a small spot to most of the plane; equal steps of the slider multiply r by equal factors.
    const scale = { low: quantile(typical, 0.002), high: quantile(typical, 0.9), usual: quantile(typical, 0.13) };
    while (fields.size >= 6) fields.delete(fields.keys().next().value);
    fields.set(key, { coarse, fine: null, scale });
  }
  const known = fields.get(key);
  field = known.fine ?? known.coarse;
  modes[state.mode].scale = known.scale;
  state.share ??= Math.log(known.scale.usual / known.scale.low) / Math.log(known.scale.high / known.scale.low);
  element("radius").value = String(state.share);
  if (!known.fine) {
    finer = { known, field: new Field(divergence, plane, GRID) };
    setTimeout(refine, 0);
  }
  request();
}

// Work on the finer grid for a while, and again after the next frame, until it can take the place of the coarse one.
function refine() {
  const job = finer;
  if (!job) return;
  if (!job.field.work(state.dragging ? SLICE : 3 * SLICE)) {
    setTimeout(refine, 0);
    return;
  }
  finer = null;
  field = job.known.fine = job.field;
  request();
  for (const tell of waiting.splice(0)) requestAnimationFrame(() => requestAnimationFrame(tell));
}

function radius() {
  const { low, high } = modes[state.mode].scale;
  return low * (high / low) ** state.share;
}

// ---------------------------------------------------------------- one picture

let asked = false;
function request() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
  });
}

const SHADES = {
  asymmetry: () => (a, b) => (a + b > 0 && a + b < Infinity ? (b - a) / (a + b) : 0),
  forth: (r) => (a) => Math.exp((-0.7 * a) / r),
  back: (r) => (_, b) => -Math.exp((-0.7 * b) / r),
  none: () => null,
};

function draw() {
  const r = radius();
  const { size } = field;
  const { colours } = picture;
  const [forth, back] = field.around(state.c);
  picture.begin();
  const covered = picture.cells(size, forth, back, r, SHADES[element("colour").value](r));
  element("shade-key").hidden = symmetric() || element("colour").value !== "asymmetry";
  const lines = element("levels").value;
  const dots = element("data-shown").checked;
  picture.layer([state.mode, plane.key, size, lines, dots].join(" "), () => {
    if (lines === "phi") for (const line of levelsOfPhi()) picture.lines(line, size, colours.line, 1);
    if (dots) drawData();
  });
  if (lines === "forth" || lines === "back") for (const m of MULTIPLES) picture.lines(contours(lines === "forth" ? forth : back, size, m * r), size, colours.line, 1);
  const borders = [contours(forth, size, r), contours(back, size, r)];
  picture.lines(borders[0], size, colours.first, 2.5);
  if (!symmetric()) picture.lines(borders[1], size, colours.second, 2.5, [9, 5]);
  const near = neighbours(r);
  drawRings(near);
  picture.cross(state.x, "x");
  picture.handle(state.c, "c", state.focused || state.dragging === "c");
  picture.end(plane.names);
  const at = field.divergence.both(field.keep(Float64Array.from(state.x), 1), field.keep(Float64Array.from(state.c), 1), 0, new Float64Array(1), new Float64Array(1));
  seen = { r, size, forth: at[0][0], back: at[1][0], covered, near, borders: borders.map((all) => all.length) };
  say();
}

function levelsOfPhi() {
  const sorted = field.profile.raw.filter(Number.isFinite).sort();
  const [low, high] = [quantile(sorted, 0.005), quantile(sorted, 0.985)];
  return Array.from({ length: PHI_LINES }, (_, k) => contours(field.profile.raw, field.size, low + ((k + 0.5) / PHI_LINES) * (high - low)));
}

// Divergences of the data to and from c, and who is nearest.
function neighbours(r) {
  const { divergence, profile } = modes[state.mode];
  if (!profile) return null;
  const centre = divergence.profile(plane.points(Float64Array.from(state.c)), 1);
  const [forth, back] = divergence.both(profile, centre, 0, new Float64Array(scene.n), new Float64Array(scene.n));
  const inside = [0, 0, 0];
  for (let i = 0; i < scene.n; i++) {
    if (forth[i] <= r) inside[0]++;
    if (back[i] <= r) inside[1]++;
    if (forth[i] <= r && back[i] <= r) inside[2]++;
  }
  const count = Math.min(scene.n, Number(element("count").value));
  const nearest = (values) => {
    const order = Array.from(values, (value, i) => [Number.isNaN(value) ? Infinity : value, i]);
    return order.sort((a, b) => a[0] - b[0]).slice(0, count).map(([, i]) => i);
  };
  return { forth, back, inside, first: nearest(forth), second: nearest(back) };
}

const dotSize = scene.n > 250 ? 3.2 : 4;
function drawData() {
  for (let i = 0; i < scene.n; i++) {
    const { fill, shape } = look(i);
    const place = plane.places[i];
    if (isFar(place)) picture.arrow(place, fill);
    else if (content.training?.[i]) picture.mark(place, shape, dotSize, picture.colours.plane, fill, 1.6);
    else picture.mark(place, shape, dotSize, fill, picture.colours.halo, 0.8);
  }
}

function drawRings(near) {
  if (!near) return;
  const { colours } = picture;
  const size = dotSize;
  for (const i of near.first) picture.ring(plane.places[i], size + 3.5, colours.first, state.c);
  if (!symmetric()) for (const i of near.second) picture.ring(plane.places[i], size + (near.first.includes(i) ? 6.5 : 3.5), colours.second, state.c, [5, 4]);
}
