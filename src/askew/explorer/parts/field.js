// A divergence on a grid of a plane: everything that does not depend on c is computed once, in slices of time.

class Field {
  constructor(divergence, plane, size) {
    Object.assign(this, { plane, size });
    const n = size * size;
    this.n = n;
    this.forth = new Float64Array(n);
    this.back = new Float64Array(n);
    this.coordinates = plane.cells(size);
    this.done = 0;
    const [left, right, bottom, top] = plane.limits;
    this.divergence = divergence.onPlane(plane);
    this.divergence.refer(Float64Array.of((left + right) / 2, (bottom + top) / 2));
  }

  // Go on for some milliseconds; says whether the field is whole.
  work(milliseconds) {
    const end = performance.now() + milliseconds;
    while (this.done < this.n) {
      const size = Math.min(2 * BLOCK, this.n - this.done);
      const part = this.keep(this.coordinates.subarray(2 * this.done, 2 * (this.done + size)), size);
      if (!this.profile) {
        // Many numbers for each cell are kept in 32 bits, of which a picture needs a few.
        const Numbers = part.width > 32 ? Float32Array : Float64Array;
        const { n } = this;
        this.profile = { n, width: part.width, embeddings: new Numbers(n * part.width), gradients: new Numbers(n * part.width) };
        for (const key of ["values", "duals", "raw"]) this.profile[key] = new Float64Array(n);
      }
      for (const key of ["embeddings", "gradients"]) this.profile[key].set(part[key], this.done * part.width);
      for (const key of ["values", "duals", "raw"]) this.profile[key].set(part[key], this.done);
      this.done += size;
      if (performance.now() > end) break;
    }
    return this.done === this.n;
  }

  keep(places, n) {
    return this.divergence.profile(places, n);
  }

  // Whether a divergence to and from this place is defined.
  has(place) {
    const { values, duals } = this.keep(Float64Array.from(place), 1);
    return Number.isFinite(values[0]) && Number.isFinite(duals[0]);
  }

  // D(x, c) and D(c, x) for all cells x.
  around(place) {
    const centre = this.keep(Float64Array.from(place), 1);
    return this.divergence.both(this.profile, centre, 0, this.forth, this.back);
  }

  // Values of D between cells that are spread evenly, sorted: what is near and far on this plane.
  typical() {
    const step = Math.max(1, Math.floor(this.size / 14));
    const chosen = [];
    for (let i = step >> 1; i < this.size; i += step) for (let j = step >> 1; j < this.size; j += step) chosen.push(i * this.size + j);
    const { width } = this.profile;
    const small = { n: chosen.length, width, embeddings: new Float64Array(chosen.length * width), gradients: new Float64Array(chosen.length * width) };
    for (const key of ["values", "duals"]) small[key] = Float64Array.from(chosen, (k) => this.profile[key][k]);
    for (const key of ["embeddings", "gradients"]) {
      chosen.forEach((k, i) => small[key].set(this.profile[key].subarray(k * width, (k + 1) * width), i * width));
    }
    const found = [];
    for (let i = 0; i < chosen.length; i += 3) {
      const [forth] = this.divergence.both(small, small, i, new Float64Array(small.n), new Float64Array(small.n));
      for (const value of forth) if (value > 0 && Number.isFinite(value)) found.push(value);
    }
    return Float64Array.from(found).sort();
  }
}
