// Arrays of numbers: read from text, multiplied, written for people.

function unpack(packed) {
  if (packed === null || packed === undefined) return null;
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const view = new DataView(bytes.buffer);
  const wide = packed.type === "f8";
  const numbers = new Float64Array(bytes.length / (wide ? 8 : 4));
  for (let i = 0; i < numbers.length; i++) {
    numbers[i] = wide ? view.getFloat64(8 * i, true) : view.getFloat32(4 * i, true);
  }
  return { shape: packed.shape, numbers };
}

function transposed(matrix) {
  const [rows, columns] = matrix.shape;
  const numbers = new Float64Array(rows * columns);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) numbers[j * rows + i] = matrix.numbers[i * columns + j];
  return { shape: [columns, rows], numbers };
}

// out += a w for a of n rows and w of shape (inner, width). Two rows and four inner steps at a time, so that each
// number that is read is used more than once: this is where nearly all the time of a new plane goes.
function addProduct(out, a, n, w) {
  const [inner, width] = w.shape;
  const m = w.numbers;
  for (let i = 0; i < n; i += 2) {
    const first = i * width;
    const second = i + 1 < n ? first + width : first;
    const p = i * inner;
    const q = i + 1 < n ? p + inner : p;
    const twice = i + 1 < n;
    let k = 0;
    for (; k + 3 < inner; k += 4) {
      const a0 = a[p + k], a1 = a[p + k + 1], a2 = a[p + k + 2], a3 = a[p + k + 3];
      const b0 = a[q + k], b1 = a[q + k + 1], b2 = a[q + k + 2], b3 = a[q + k + 3];
      const r0 = k * width, r1 = r0 + width, r2 = r1 + width, r3 = r2 + width;
      for (let j = 0; j < width; j++) {
        const m0 = m[r0 + j], m1 = m[r1 + j], m2 = m[r2 + j], m3 = m[r3 + j];
        out[first + j] += a0 * m0 + a1 * m1 + a2 * m2 + a3 * m3;
        if (twice) out[second + j] += b0 * m0 + b1 * m1 + b2 * m2 + b3 * m3;
      }
    }
    for (; k < inner; k++) {
      const a0 = a[p + k], b0 = a[q + k], r0 = k * width;
      for (let j = 0; j < width; j++) {
        out[first + j] += a0 * m[r0 + j];
        if (twice) out[second + j] += b0 * m[r0 + j];
      }
    }
  }
  return out;
}

function product(a, n, w) {
  return addProduct(new Float64Array(n * w.shape[1]), a, n, w);
}

function quantile(sorted, share) {
  if (!sorted.length) return NaN;
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  const high = Math.min(sorted.length - 1, low + 1);
  return sorted[low] + (place - low) * (sorted[high] - sorted[low]);
}

// Three digits, and no exponent where people do not expect one.
function shown(value) {
  if (value === Infinity || Number.isNaN(value)) return "∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

// About `count` round numbers between two.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const large = Math.max(Math.abs(low), Math.abs(high)) >= 1e5 || digits > 4;
  return found.map((value) => ({ value, text: large ? shown(value) : value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1") }));
}
