// Divergences: embeddings of points, and what is kept of each so that a divergence is one inner product.
//
// For embeddings f of points, D(x, c) = phi(x) - phi(c) - <grad phi(c), f(x) - f(c)>. With dual = <grad phi, f> - phi of each
// point this is phi(x) + dual(c) - <grad phi(c), f(x)>: all of it but the last term is known beforehand. It is computed
// in 64 bits with embeddings and gradients taken relative to those of one reference point, which changes no divergence but
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
      // A point outside of the domain has no embedding, also where its gradient has a formula.
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
  // `encoders` has the one of the first point and that of the second, each { steps, straight }: how many of the first
  // steps map planes to planes. They are the same object if there is one encoder.
  constructor(dim, encoders, potential, changes) {
    Object.assign(this, { dim, encoders, potential, changes });
    this.reference = null;
  }

  static described({ encoder, second, potential, changes }, dim) {
    const read = (parts) => {
      const bent = parts.findIndex((step) => !STRAIGHT.has(step.kind));
      return { steps: parts.map((step) => STEPS[step.kind](step)), straight: bent < 0 ? parts.length : bent };
    };
    const first = read(encoder);
    return new Divergence(dim, [first, second ? read(second) : first], makePotential(potential), changes);
  }

  // The same between places (u, v) of a plane. All that is straight is done beforehand: whatever the number of features
  // is, an embedding after the straight steps is base + u first + v second, and so is the point of a potential behind them.
  onPlane(plane) {
    const corners = plane.points(Float64Array.of(0, 0, 1, 0, 0, 1));
    const framed = ({ steps, straight }) => {
      const embeddings = steps.slice(0, straight).reduce((rows, step) => step(rows, 3), corners);
      const width = embeddings.length / 3;
      const row = (i) => embeddings.slice(i * width, (i + 1) * width);
      const base = row(0);
      return { base, first: row(1).map((x, j) => x - base[j]), second: row(2).map((x, j) => x - base[j]) };
    };
    const lifted = (encoder) => {
      const { base, first, second } = framed(encoder);
      const matrix = stacked([first, second]);
      const lift = (places, n) => {
        const out = new Float64Array(n * base.length);
        for (let i = 0; i < n; i++) out.set(base, i * base.length);
        return addProduct(out, places, n, matrix);
      };
      return { steps: [lift, ...encoder.steps.slice(encoder.straight)], straight: 1 };
    };
    const [one, other] = this.encoders;
    if (one === other && one.straight === one.steps.length) {
      const none = { steps: [], straight: 0 };
      return new Divergence(2, [none, none], restricted(this.potential, framed(one)), this.changes);
    }
    const first = lifted(one);
    return new Divergence(2, [first, one === other ? first : lifted(other)], this.potential, this.changes);
  }

  encode(points, n, side = 0) {
    return this.encoders[side].steps.reduce((embeddings, step) => step(embeddings, n), points);
  }

  // Take embeddings and gradients relative to those of a point from now on.
  refer(point) {
    this.reference = null;
    const { embeddings, values, gradients } = this.profile(point, 1);
    const usable = Number.isFinite(values[0]) && gradients.every(Number.isFinite);
    this.reference = usable ? { embedding: embeddings, value: values[0], gradient: gradients } : null;
  }

  // What is kept of points, relative to the reference: embedding and phi of each as a first point, gradient and dual as
  // a second one; `raw` is phi itself.
  profile(points, n) {
    const width = this.encode(points.subarray(0, this.dim), 1).length;
    const whole = {
      n,
      width,
      embeddings: new Float64Array(n * width),
      values: new Float64Array(n),
      gradients: new Float64Array(n * width),
      duals: new Float64Array(n),
      raw: new Float64Array(n),
    };
    const shared = this.encoders[0] === this.encoders[1];
    for (let start = 0; start < n; start += BLOCK) {
      const size = Math.min(BLOCK, n - start);
      const block = points.slice(start * this.dim, (start + size) * this.dim);
      const first = this.encode(block, size);
      const one = this.potential.evaluate(first, size, width);
      const second = shared ? first : this.encode(block, size, 1);
      const other = shared ? one : this.potential.evaluate(second, size, width);
      whole.raw.set(one.values, start);
      this.centre(whole, start, size, { first, second, heights: [one.values, other.values], gradients: other.gradients });
    }
    return whole;
  }

  // Put a block into the arrays of a profile, relative to the reference.
  centre({ width, embeddings, values, gradients, duals }, start, size, block) {
    const reference = this.reference ?? { embedding: new Float64Array(width), gradient: new Float64Array(width), value: 0 };
    const { value, embedding, gradient } = reference;
    for (let i = 0, k = 0; i < size; i++) {
      const slopes = [0, 0];
      let product = 0;
      for (let j = 0; j < width; j++, k++) {
        const at = start * width + k;
        const behind = block.second[k] - embedding[j];
        embeddings[at] = block.first[k] - embedding[j];
        gradients[at] = block.gradients[k] - gradient[j];
        slopes[0] += gradient[j] * embeddings[at];
        slopes[1] += gradient[j] * behind;
        product += gradients[at] * behind;
      }
      values[start + i] = block.heights[0][i] - (value + slopes[0]);
      duals[start + i] = product - (block.heights[1][i] - (value + slopes[1]));
    }
  }

  // D(x, c) and D(c, x) for all x of a profile and the point `at` of another one, into two arrays.
  both(profile, centre, at, forth, back) {
    const { n, width, embeddings, values, gradients, duals } = profile;
    const embedding = centre.embeddings.subarray(at * width, (at + 1) * width);
    const gradient = centre.gradients.subarray(at * width, (at + 1) * width);
    const value = centre.values[at];
    const dual = centre.duals[at];
    if (width === 2) {
      const [p, q] = embedding;
      const [g, h] = gradient;
      for (let i = 0, k = 0; i < n; i++, k += 2) {
        forth[i] = Math.max(0, values[i] + dual - (g * embeddings[k] + h * embeddings[k + 1]));
        back[i] = Math.max(0, value + duals[i] - (p * gradients[k] + q * gradients[k + 1]));
      }
    } else {
      for (let i = 0, k = 0; i < n; i++) {
        let to = 0;
        let from = 0;
        for (let j = 0; j < width; j++, k++) {
          to += gradient[j] * embeddings[k];
          from += embedding[j] * gradients[k];
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
      for (const key of ["embeddings", "gradients"]) one[key] = first[key].subarray(i * first.width, (i + 1) * first.width);
      for (const key of ["values", "duals"]) one[key] = first[key].subarray(i, i + 1);
      result[i] = this.both(one, second, i, new Float64Array(1), new Float64Array(1))[0][0];
    }
    return result;
  }
}
