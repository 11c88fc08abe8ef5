// Planes in the space of the features: origin + u first + v second, and where points fall on them.

class Plane {
  constructor(origin, first, second, place, names, limits) {
    Object.assign(this, { origin, first, second, place, names, limits });
  }

  // Points of the plane at coordinates (u, v), as rows.
  points(coordinates) {
    const n = coordinates.length / 2;
    const dim = this.origin.length;
    const rows = new Float64Array(n * dim);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < dim; j++) {
        rows[i * dim + j] = this.origin[j] + coordinates[2 * i] * this.first[j] + coordinates[2 * i + 1] * this.second[j];
      }
    }
    return rows;
  }

  // Coordinates of the n middles of a grid's cells, row by row from the bottom.
  cells(size) {
    const [left, right, bottom, top] = this.limits;
    const found = new Float64Array(2 * size * size);
    for (let i = 0, k = 0; i < size; i++) {
      for (let j = 0; j < size; j++, k += 2) {
        found[k] = left + ((j + 0.5) / size) * (right - left);
        found[k + 1] = bottom + ((i + 0.5) / size) * (top - bottom);
      }
    }
    return found;
  }
}

// The slice in which two features vary and the others are those of `held`.
function featurePlane(scene, first, second, held) {
  const origin = held.slice();
  origin[first] = origin[second] = 0;
  const unit = (k) => Float64Array.from(origin, (_, j) => (j === k ? 1 : 0));
  const place = (rows, i) => [rows[i * scene.dim + first], rows[i * scene.dim + second]];
  const names = [scene.features[first], scene.features[second]];
  const limits = fitted([first, second].map((k) => range(scene, k)), false);
  return new Plane(origin, unit(first), unit(second), place, names, within(limits, scene.domain));
}

// The plane of the two directions in which the data spread most, through `held`.
function principalPlane(scene, held) {
  const { steps, measure, shares } = scene.principal;
  const dim = scene.dim;
  const place = (rows, i) =>
    [0, 1].map((k) => {
      let total = 0;
      for (let j = 0; j < dim; j++) total += measure[k * dim + j] * (rows[i * dim + j] - scene.mean[j]);
      return total;
    });
  const [u, v] = place(held, 0);
  const first = steps.slice(0, dim);
  const second = steps.slice(dim);
  const origin = held.map((x, j) => x - u * first[j] - v * second[j]);
  const share = (k) => (shares ? ` (${Number((100 * shares[k]).toPrecision(2))} % of the spread)` : "");
  const names = shares ? [0, 1].map((k) => `principal direction ${k + 1}${share(k)}`) : ["towards outcome 2", "towards outcome 3"];
  let ranges = [[-0.75, 0.75], [-0.5, 0.9]];
  if (scene.points) {
    const places = Array.from({ length: scene.n }, (_, i) => place(scene.points, i));
    ranges = [0, 1].map((k) => padded(places.map((p) => p[k]), scene.whole));
  }
  return new Plane(origin, first, second, place, names, fitted(ranges, true));
}

// The range of values with a margin; without the lowest and the highest per cent if these take a third of the room.
function padded(values, whole) {
  const sorted = Float64Array.from(values).sort();
  let [low, high] = [sorted[0], sorted[sorted.length - 1]];
  const cut = Math.ceil(0.01 * (sorted.length - 1));
  const [first, last] = [sorted[cut], sorted[sorted.length - 1 - cut]];
  if (!whole && last > first && high - low > 1.5 * (last - first)) [low, high] = [first, last];
  const margin = 0.12 * (high - low) || Math.abs(low) || 1;
  return [low - margin, high + margin];
}

function range(scene, k) {
  if (!scene.points) return [scene.mean[k] - 2 * scene.std[k], scene.mean[k] + 2 * scene.std[k]];
  return padded(Array.from({ length: scene.n }, (_, i) => scene.points[i * scene.dim + k]), scene.whole);
}

// Both axes in one unit where that wastes little room, or always: then shapes are as they are.
function fitted([[left, right], [bottom, top]], always) {
  const ratio = (right - left) / (top - bottom);
  if (!always && (ratio > 2.2 || ratio < 1 / 2.2)) return [left, right, bottom, top];
  const half = Math.max(right - left, top - bottom) / 2;
  const [u, v] = [(left + right) / 2, (bottom + top) / 2];
  return [u - half, u + half, v - half, v + half];
}

// Limits moved and cut so that no room is given to what lies outside of the bounds of the features.
function within([left, right, bottom, top], { lower, upper }) {
  const moved = (low, high) => {
    const length = high - low;
    if (lower !== null && low < lower) [low, high] = [lower, lower + length];
    if (upper !== null && high > upper) [low, high] = [Math.max(upper - length, lower ?? -Infinity), upper];
    return [low, high];
  };
  return [...moved(left, right), ...moved(bottom, top)];
}
