// Convex functions phi: values and gradients of many points at a time.
//
// Each has evaluate(points, n, dim) -> { values: n, gradients: n x dim }, NaN outside of its domain. Those that can be
// restricted to the points base + u first + v second at less cost than evaluating them there have restrict(frame) -> a
// potential of (u, v).

const ACTIVATIONS = {
  // g(b) and g'(b) in the unit of the network, for all numbers of `b`; `b` becomes g(b).
  squareplus(b, slope) {
    for (let i = 0; i < b.length; i++) {
      const a = b[i];
      const root = Math.sqrt(a * a + 1);
      // b + sqrt(b^2 + 1) cancels for b < 0, where it is 1 / (|b| + sqrt(b^2 + 1)).
      const value = a > 0 ? a + root : 1 / (root - a);
      slope[i] = value / root;
      b[i] = value;
    }
  },
  softplus(b, slope) {
    for (let i = 0; i < b.length; i++) {
      const a = b[i];
      const small = Math.exp(-Math.abs(a));
      slope[i] = a > 0 ? 1 / (1 + small) : small / (1 + small);
      b[i] = Math.max(a, 0) + Math.log1p(small);
    }
  },
  relu(b, slope) {
    for (let i = 0; i < b.length; i++) {
      slope[i] = b[i] > 0 ? 1 : 0;
      b[i] = Math.max(b[i], 0);
    }
  },
};

// z' = g(W z + U v + bias) with W >= 0, phi = out . z; the last row of each lift is the bias.
function network(description) {
  return layered(description.lifts.map(unpack), description.mixes.map(unpack), description);
}

function layered(lifts, mixes, description) {
  const biases = lifts.map((lift) => lift.numbers.slice(-lift.shape[1]));
  const inputs = lifts.map((lift) => {
    const shape = [lift.shape[0] - 1, lift.shape[1]];
    return { shape, numbers: lift.numbers.slice(0, shape[0] * shape[1]) };
  });
  const inputsBack = inputs.map(transposed);
  const mixesBack = mixes.map(transposed);
  const out = unpack(description.out).numbers;
  const activate = ACTIVATIONS[description.activation];
  const gain = description.gain;
  return {
    evaluate(points, n, dim) {
      const slopes = [];
      let z = null;
      for (let l = 0; l < inputs.length; l++) {
        const width = inputs[l].shape[1];
        const b = new Float64Array(n * width);
        for (let i = 0; i < n; i++) b.set(biases[l], i * width);
        addProduct(b, points, n, inputs[l]);
        if (l > 0) addProduct(b, z, n, mixes[l - 1]);
        for (let i = 0; i < b.length; i++) b[i] *= gain;
        const slope = new Float64Array(b.length);
        activate(b, slope);
        slopes.push(slope);
        z = b;
      }
      const width = out.length;
      const values = new Float64Array(n);
      for (let i = 0; i < n; i++) for (let j = 0; j < width; j++) values[i] += z[i * width + j] * out[j];
      const gradients = new Float64Array(n * dim);
      let adjoint = new Float64Array(n * width);
      for (let i = 0; i < n; i++) adjoint.set(out, i * width);
      for (let l = inputs.length - 1; l >= 0; l--) {
        const slope = slopes[l];
        for (let i = 0; i < adjoint.length; i++) adjoint[i] *= slope[i] * gain;
        addProduct(gradients, adjoint, n, inputsBack[l]);
        if (l > 0) adjoint = product(adjoint, n, mixesBack[l - 1]);
      }
      return { values, gradients };
    },
    restrict(frame) {
      const narrow = lifts.map((_, l) => {
        const rows = [frame.first, frame.second, frame.base].map((row) => product(row, 1, inputs[l]));
        biases[l].forEach((bias, j) => (rows[2][j] += bias));
        return stacked(rows);
      });
      return layered(narrow, mixes, description);
    },
  };
}

// Bends of single features: sum of weight g(sharpness v + offset), g the squareplus.
function atoms(description) {
  const [sharpness, offset, weight] = ["sharpness", "offset", "weight"].map((key) => unpack(description[key]));
  const count = sharpness.shape[1];
  return {
    evaluate(points, n, dim) {
      const values = new Float64Array(n);
      const gradients = new Float64Array(n * dim);
      const b = new Float64Array(dim * count);
      const slope = new Float64Array(dim * count);
      for (let i = 0; i < n; i++) {
        for (let j = 0, k = 0; j < dim; j++) {
          const v = points[i * dim + j];
          for (let end = k + count; k < end; k++) b[k] = v * sharpness.numbers[k] + offset.numbers[k];
        }
        ACTIVATIONS.squareplus(b, slope);
        for (let j = 0, k = 0; j < dim; j++) {
          for (let end = k + count; k < end; k++) {
            values[i] += b[k] * weight.numbers[k];
            gradients[i * dim + j] += slope[k] * weight.numbers[k] * sharpness.numbers[k];
          }
        }
      }
      return { values, gradients };
    },
  };
}

function quadratic(description) {
  const matrix = unpack(description.matrix);
  const back = matrix && transposed(matrix);
  return {
    evaluate(points, n, dim) {
      const embedding = matrix ? product(points, n, matrix) : points;
      const width = embedding.length / n;
      const values = new Float64Array(n);
      for (let i = 0; i < n; i++) for (let j = 0; j < width; j++) values[i] += embedding[i * width + j] ** 2;
      const gradients = matrix ? product(embedding, n, back) : points.slice(0, n * dim);
      for (let i = 0; i < gradients.length; i++) gradients[i] *= 2;
      return { values, gradients };
    },
    restrict(frame) {
      const embedding = matrix ? mapped(frame, (row) => product(row, 1, matrix)) : frame;
      return onFrame(quadratic({ matrix: null }), embedding);
    },
  };
}

function icnn(description) {
  const terms = description.terms.map(makePotential);
  const shift = unpack(description.shift)?.numbers;
  const factor = unpack(description.inverse_spread)?.numbers;
  return {
    evaluate(points, n, dim) {
      const v = points.slice(0, n * dim);
      if (shift) for (let i = 0; i < v.length; i++) v[i] = (v[i] - shift[i % dim]) * factor[i % dim];
      const total = summed(terms, v, n, dim);
      for (let i = 0; i < n; i++) total.values[i] *= description.scale;
      for (let i = 0; i < n * dim; i++) total.gradients[i] *= description.scale * (factor ? factor[i % dim] : 1);
      return total;
    },
    restrict(frame) {
      const scale = (row, from) => row.map((x, j) => (x - (from ? from[j] : 0)) * factor[j]);
      const inner = factor ? { base: scale(frame.base, shift), first: scale(frame.first), second: scale(frame.second) } : frame;
      const parts = terms.map((term) => restricted(term, inner));
      return multiplied({ evaluate: (points, n, dim) => summed(parts, points, n, dim) }, description.scale);
    },
  };
}

function summed(parts, points, n, dim) {
  const total = { values: new Float64Array(n), gradients: new Float64Array(n * dim) };
  for (const part of parts) {
    const { values, gradients } = part.evaluate(points, n, dim);
    for (let i = 0; i < n; i++) total.values[i] += values[i];
    for (let i = 0; i < n * dim; i++) total.gradients[i] += gradients[i];
  }
  return total;
}

// A sum of one function of each feature: value and slope of a number, NaN outside.
function separable(value, slope) {
  return {
    evaluate(points, n, dim) {
      const values = new Float64Array(n);
      const gradients = new Float64Array(n * dim);
      for (let i = 0; i < n * dim; i++) {
        values[(i / dim) | 0] += value(points[i]);
        gradients[i] = slope(points[i]);
      }
      return { values, gradients };
    },
  };
}

const xlogx = (x) => (x === 0 ? 0 : x * Math.log(x));

function softmax(points, n, dim) {
  const result = new Float64Array(n * dim);
  const values = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    let highest = -Infinity;
    for (let j = 0; j < dim; j++) highest = Math.max(highest, points[i * dim + j]);
    let total = 0;
    for (let j = 0; j < dim; j++) total += result[i * dim + j] = Math.exp(points[i * dim + j] - highest);
    for (let j = 0; j < dim; j++) result[i * dim + j] /= total;
    values[i] = highest + Math.log(total);
  }
  return { values, gradients: result };
}

function hyperboloid(points, n, dim) {
  const values = new Float64Array(n);
  for (let i = 0; i < points.length; i++) values[Math.floor(i / dim)] += points[i] * points[i];
  for (let i = 0; i < n; i++) values[i] = Math.sqrt(1 + values[i]);
  return { values, gradients: points.map((x, i) => x / values[Math.floor(i / dim)]) };
}

function power({ p }) {
  const signed = (x, q) => Math.sign(x) * Math.abs(x) ** q;
  return separable((x) => Math.abs(x) ** p, (x) => p * signed(x, p - 1));
}

function scaled(description) {
  return multiplied(makePotential(description.inner), description.factor);
}

function multiplied(inner, factor) {
  return {
    evaluate(points, n, dim) {
      const { values, gradients } = inner.evaluate(points, n, dim);
      return { values: values.map((x) => factor * x), gradients: gradients.map((x) => factor * x) };
    },
    restrict: (frame) => multiplied(restricted(inner, frame), factor),
  };
}

function affine(description) {
  const inner = makePotential(description.inner);
  const matrix = unpack(description.matrix);
  const offset = unpack(description.offset)?.numbers ?? new Float64Array(matrix.shape[1]);
  const outer = composed(inner, matrix, offset);
  outer.restrict = (frame) => {
    const embedding = mapped(frame, (row) => product(row, 1, matrix));
    return restricted(inner, { ...embedding, base: embedding.base.map((x, j) => x + offset[j]) });
  };
  return outer;
}

// inner(x matrix + offset).
function composed(inner, matrix, offset) {
  const back = transposed(matrix);
  const width = matrix.shape[1];
  return {
    evaluate(points, n) {
      const embedding = new Float64Array(n * width);
      for (let i = 0; i < n; i++) embedding.set(offset, i * width);
      const { values, gradients } = inner.evaluate(addProduct(embedding, points, n, matrix), n, width);
      return { values, gradients: product(gradients, n, back) };
    },
  };
}

function mapped(frame, map) {
  return { base: map(frame.base), first: map(frame.first), second: map(frame.second) };
}

function onFrame(inner, { base, first, second }) {
  return composed(inner, stacked([first, second]), base);
}

// Rows as one matrix.
function stacked(rows) {
  const width = rows[0].length;
  const numbers = new Float64Array(rows.length * width);
  rows.forEach((row, i) => numbers.set(row, i * width));
  return { shape: [rows.length, width], numbers };
}

function restricted(potential, frame) {
  return potential.restrict ? potential.restrict(frame) : onFrame(potential, frame);
}

// The largest of some affine functions; its gradient is the slope of the first that is largest.
function pieces(description) {
  const slopes = unpack(description.slopes);
  const columns = transposed(slopes);
  const intercepts = unpack(description.intercepts).numbers;
  const count = intercepts.length;
  return {
    evaluate(points, n, dim) {
      const all = new Float64Array(n * count);
      for (let i = 0; i < n; i++) all.set(intercepts, i * count);
      addProduct(all, points, n, columns);
      const values = new Float64Array(n);
      const gradients = new Float64Array(n * dim);
      for (let i = 0; i < n; i++) {
        let best = 0;
        for (let k = 1; k < count; k++) if (all[i * count + k] > all[i * count + best]) best = k;
        values[i] = all[i * count + best];
        gradients.set(slopes.numbers.subarray(best * dim, (best + 1) * dim), i * dim);
      }
      return { values, gradients };
    },
  };
}

// A convex function whose gradients are taken relative to a drift, a network of the point.
function drift(description) {
  const inner = makePotential(description.inner);
  const steps = description.steps.map((step) => STEPS[step.kind](step));
  return {
    evaluate(points, n, dim) {
      const { values, gradients } = inner.evaluate(points, n, dim);
      const wind = steps.reduce((rows, step) => step(rows, n), points);
      return { values, gradients: gradients.map((slope, i) => slope - wind[i]) };
    },
  };
}

const POTENTIALS = {
  drift,
  network,
  pieces,
  atoms,
  quadratic,
  icnn,
  entropy: () => separable((x) => xlogx(x) - x, Math.log),
  power,
  scaled,
  affine,
  sum(description) {
    const parts = description.parts.map(makePotential);
    const whole = (all) => ({ evaluate: (points, n, dim) => summed(all, points, n, dim) });
    return { ...whole(parts), restrict: (frame) => whole(parts.map((part) => restricted(part, frame))) };
  },
  burg: () => separable((x) => -Math.log(x), (x) => (x > 0 ? -1 / x : NaN)),
  exponential: () => separable(Math.exp, Math.exp),
  "fermi-dirac": () => separable((x) => xlogx(x) + xlogx(1 - x), (x) => Math.log(x) - Math.log1p(-x)),
  hyperbolic: () => ({ evaluate: hyperboloid }),
  "log-sum-exp": () => ({ evaluate: softmax }),
};

function makePotential(description) {
  return POTENTIALS[description.kind](description);
}
