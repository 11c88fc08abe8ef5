// Divergences: images of points, and what is kept of each so that a divergence is one inner product.
//
// For images f of points, D(x, c) = phi(x) - phi(c) - <grad phi(c), f(x) - f(c)>. With dual = <grad phi, f> - phi of each
// point this is phi(x) + dual(c) - <grad phi(c), f(x)>: all of it but the last term is known beforehand. It is computed
// in 64 bits with images and gradients taken relative to those of one reference point, which changes no divergence but
// keeps the terms small; what rounding leaves below 0 is 0.

const STEPS = {
  scale(step) {
    const shift = unpack(step.shift).numbers;
    const factor = unpack(step.factor)?.numbers ?? shift.map(() => 1);
    const dim = shift.length;
    return (points) => points.map((x, i) => (x - shift[i % dim]) * factor[i % dim]);
  },
  linear(step) {
    const weight = unpack(step.weight);
    const bias = unpack(step.bias)?.numbers;
    const width = weight.shape[1];
    return (points, n) => {
      const out = new Float64Array(n * width);
      if (bias) for (let i = 0; i < n; i++) out.set(bias, i * width);
      return addProduct(out, points, n, weight);
    };
  },
  relu: () => (points) => points.map((x) => Math.max(x, 0)),
  silu: () => (points) => points.map((x) => x / (1 + Math.exp(-x))),
  tanh: () => (points) => points.map(Math.tanh),
  sigmoid: () => (points) => points.map((x) => 1 / (1 + Math.exp(-x))),
  "plus-gradient"(step) {
    const potential = makePotential(step.potential);
    return (points, n) => {
      const { values, gradients } = potential.evaluate(points, n, points.length / n);
      // A point outside of the domain has no image, also where its gradient has a formula.
      return points.map((x, i) => x + gradients[i] + 0 * values[Math.floor((i * n) / points.length)]);
    };
  },
};
// Steps that map planes to planes.
const STRAIGHT = new Set(["scale", "linear"]);
// Points that go through a network at a time: their layers stay in the cache.
const BLOCK = 128;

// What is done to D(x, c) and D(c, x), two arrays, in place; returned in their order.
const CHANGES = {
  reversed: (forth, back) => [back, forth],
  scaled(forth, back, { factor }) {
    for (let i = 0; i < forth.length; i++) (forth[i] *= factor), (back[i] *= factor);
    return [forth, back];
  },
  root(forth, back, { floor = 0 }) {
    // sqrt(x + floor^2) - floor without cancellation
    const root = (x) => (x > 0 ? x / (Math.sqrt(x + floor * floor) + floor) : x);
    for (let i = 0; i < forth.length; i++) (forth[i] = root(forth[i])), (back[i] = root(back[i]));
    return [forth, back];
  },
  symmetrized(forth, back) {
    for (let i = 0; i < forth.length; i++) forth[i] = back[i] = forth[i] + back[i];
    return [forth, back];
  },
};

class Divergence {
  constructor(dim, steps, straight, potential, changes) {
    // `straight` is how many of the first steps map planes to planes.
    Object.assign(this, { dim, steps, straight, potential, changes });
    this.reference = null;
  }

  static described({ encoder, potential, changes }, dim) {
    const bent = encoder.findIndex((step) => !STRAIGHT.has(step.kind));
    const steps = encoder.map((step) => STEPS[step.kind](step));
    return new Divergence(dim, steps, bent < 0 ? steps.length : bent, makePotential(potential), changes);
  }

  // The same between places (u, v) of a plane. All that is straight is done beforehand: whatever the number of features
  // is, an image after the straight steps is base + u first + v second, and so is the point of a potential behind them.
  onPlane(plane) {
    const corners = plane.points(Float64Array.of(0, 0, 1, 0, 0, 1));
    const images = this.steps.slice(0, this.straight).reduce((rows, step) => step(rows, 3), corners);
    const width = images.length / 3;
    const row = (i) => images.slice(i * width, (i + 1) * width);
    const base = row(0);
    const frame = { base, first: row(1).map((x, j) => x - base[j]), second: row(2).map((x, j) => x - base[j]) };
    if (this.straight === this.steps.length) return new Divergence(2, [], 0, restricted(this.potential, frame), this.changes);
    const matrix = stacked([frame.first, frame.second]);
    const first = (places, n) => {
      const out = new Float64Array(n * width);
      for (let i = 0; i < n; i++) out.set(base, i * width);
      return addProduct(out, places, n, matrix);
    };
    return new Divergence(2, [first, ...this.steps.slice(this.straight)], 1, this.potential, this.changes);
  }

  encode(points, n) {
    return this.steps.reduce((images, step) => step(images, n), points);
  }

  // Take images and gradients relative to those of a point from now on.
  refer(point) {
    this.reference = null;
    const { images, values, gradients } = this.profile(point, 1);
    const usable = Number.isFinite(values[0]) && gradients.every(Number.isFinite);
    this.reference = usable ? { image: images, value: values[0], gradient: gradients } : null;
  }

  // What is kept of points: image, phi, gradient and dual of each, relative to the reference; `raw` is phi itself.
  profile(points, n) {
    const width = this.encode(points.subarray(0, this.dim), 1).length;
    const whole = {
      n,
      width,
      images: new Float64Array(n * width),
      values: new Float64Array(n),
      gradients: new Float64Array(n * width),
      duals: new Float64Array(n),
      raw: new Float64Array(n),
    };
    for (let start = 0; start < n; start += BLOCK) {
      const size = Math.min(BLOCK, n - start);
      const images = this.encode(points.slice(start * this.dim, (start + size) * this.dim), size);
      const { values, gradients } = this.potential.evaluate(images, size, width);
      whole.images.set(images, start * width);
      whole.gradients.set(gradients, start * width);
      whole.values.set(values, start);
      whole.raw.set(values, start);
    }
    this.centre(whole);
    return whole;
  }

  centre({ n, width, images, values, gradients, duals }) {
    const reference = this.reference;
    for (let i = 0; i < n; i++) {
      let slope = 0;
      let dual = 0;
      for (let j = 0, k = i * width; j < width; j++, k++) {
        if (reference) {
          images[k] -= reference.image[j];
          gradients[k] -= reference.gradient[j];
          slope += reference.gradient[j] * images[k];
        }
        dual += gradients[k] * images[k];
      }
      if (reference) values[i] -= reference.value + slope;
      duals[i] = dual - values[i];
    }
  }

  // D(x, c) and D(c, x) for all x of a profile and the point `at` of another one, into two arrays.
  both(profile, centre, at, forth, back) {
    const { n, width, images, values, gradients, duals } = profile;
    const image = centre.images.subarray(at * width, (at + 1) * width);
    const gradient = centre.gradients.subarray(at * width, (at + 1) * width);
    const value = centre.values[at];
    const dual = centre.duals[at];
    if (width === 2) {
      const [p, q] = image;
      const [g, h] = gradient;
      for (let i = 0, k = 0; i < n; i++, k += 2) {
        forth[i] = Math.max(0, values[i] + dual - (g * images[k] + h * images[k + 1]));
        back[i] = Math.max(0, value + duals[i] - (p * gradients[k] + q * gradients[k + 1]));
      }
    } else {
      for (let i = 0, k = 0; i < n; i++) {
        let to = 0;
        let from = 0;
        for (let j = 0; j < width; j++, k++) {
          to += gradient[j] * images[k];
          from += image[j] * gradients[k];
        }
        forth[i] = Math.max(0, values[i] + dual - to);
        back[i] = Math.max(0, value + duals[i] - from);
      }
    }
    return this.changes.reduce(([a, b], change) => CHANGES[change.kind](a, b, change), [forth, back]);
  }

  // D of rows against rows, for checks.
  pairs(x, y, n) {
    const first = this.profile(x, n);
    const second = this.profile(y, n);
    const result = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      const one = { n: 1, width: first.width };
      for (const key of ["images", "gradients"]) one[key] = first[key].subarray(i * first.width, (i + 1) * first.width);
      for (const key of ["values", "duals"]) one[key] = first[key].subarray(i, i + 1);
      result[i] = this.both(one, second, i, new Float64Array(1), new Float64Array(1))[0][0];
    }
    return result;
  }
}
