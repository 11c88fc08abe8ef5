// What the page was written with: data, the divergences of the switch, classes; and what is chosen now.

const element = (id) => document.getElementById(id);
const content = JSON.parse(element("content").textContent);
const GRID = 200;
const COARSE = 50;
// Milliseconds of a frame that go into a finer grid while somebody drags.
const SLICE = 10;
const PHI_LINES = 14;
// Level sets of a divergence, in units of r.
const MULTIPLES = [0.125, 0.25, 0.5, 2, 4, 8, 16];
const GLYPHS = { circle: "●", square: "■", triangle: "▲", diamond: "◆" };

const scene = { ...content };
for (const key of ["points", "mean", "std"]) scene[key] = unpack(content[key])?.numbers ?? null;
if (content.principal) {
  scene.principal = { ...content.principal };
  for (const key of ["steps", "measure"]) scene.principal[key] = unpack(content.principal[key]).numbers;
}
scene.n = scene.points ? scene.points.length / scene.dim : 0;

// ---------------------------------------------------------------- divergences

// Squared distances, with phi = 0 at the mean: that is no other divergence, but level sets that say something.
const squares = (matrix) => ({
  encoder: [{ kind: "scale", shift: content.mean, factor: null }],
  potential: { kind: "quadratic", matrix },
  changes: [],
});
const modes = {
  model: { label: content.name, description: content.model, note: "The model itself, evaluated in your browser." },
  euclidean: { label: "Euclidean", description: squares(null), note: "Squared Euclidean distance of the features as they are. Symmetric: both balls are one." },
  mahalanobis: {
    label: "Mahalanobis",
    description: content.mahalanobis && squares(content.mahalanobis),
    note: "Squared Mahalanobis distance by the covariance of the data. Symmetric, and the same everywhere.",
  },
};
for (const mode of Object.values(modes)) {
  if (!mode.description) continue;
  mode.divergence = Divergence.described(mode.description, scene.dim);
  mode.divergence.refer(scene.mean);
  mode.profile = scene.points && mode.divergence.profile(scene.points, scene.n);
}

const state = { mode: "model", share: null, c: null, x: null, held: null, dragging: null, focused: false };
const picture = new Picture(element("plane"));
const fields = new Map();
let plane = null;
let field = null;
let finer = null;
let seen = {};

// Whether D(x, c) = D(c, x) by the divergence that is chosen.
const symmetric = () => state.mode !== "model" || content.symmetric;
const nameOf = (i) => content.names?.[i] ?? String(content.rows[i]);

// ---------------------------------------------------------------- classes

const classNumber = new Map(content.classes.map((name, k) => [name, k]));
const looks = content.classes.map((_, k) => ({ colour: k % 8, shape: SHAPES[(k + Math.floor(k / 8)) % 4] }));
function look(i) {
  const k = content.labels ? classNumber.get(content.labels[i]) : 0;
  if (k === undefined || !content.labels) return { fill: picture.colours.other, shape: "circle", variable: "--other" };
  return { fill: picture.colours.classes[looks[k].colour], shape: looks[k].shape, variable: `--class-${looks[k].colour + 1}` };
}
