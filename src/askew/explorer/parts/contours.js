// Lines on which a field has one value: marching squares with linear interpolation, joined to long lines.

// Returns polylines [x0, y0, x1, y1, ...] in units of cells; `field` is size x size, row by row, NaN where there is none.
function contours(field, size, level) {
  // Each crossing lies on an edge between two neighbours: 2 k to the right of cell k, 2 k + 1 above it.
  const links = new Map();
  const link = (a, b) => {
    for (const [from, to] of [[a, b], [b, a]]) {
      const known = links.get(from);
      if (known === undefined) links.set(from, [to, -1]);
      else known[1] = to;
    }
  };
  for (let i = 0; i + 1 < size; i++) {
    for (let j = 0; j + 1 < size; j++) {
      const k = i * size + j;
      const a = field[k], b = field[k + 1], c = field[k + size + 1], d = field[k + size];
      // A corner without a value has none of the comparisons; the sum shows it.
      const kind = (a > level) | ((b > level) << 1) | ((c > level) << 2) | ((d > level) << 3);
      if (kind === 0 || kind === 15 || Number.isNaN(a + b + c + d)) continue;
      const bottom = 2 * k, right = 2 * (k + 1) + 1, top = 2 * (k + size), left = 2 * k + 1;
      switch (kind < 8 ? kind : 15 - kind) {
        case 1: link(left, bottom); break;
        case 2: link(bottom, right); break;
        case 3: link(left, right); break;
        case 4: link(right, top); break;
        case 6: link(bottom, top); break;
        case 7: link(left, top); break;
        case 5: {
          // Two corners above that touch at a point: what is in the middle decides how they are joined.
          const high = (a + b + c + d) / 4 > level;
          if (high === (kind === 5)) link(left, top), link(bottom, right);
          else link(left, bottom), link(right, top);
        }
      }
    }
  }
  const lines = [];
  const walk = (start) => {
    const line = [];
    let last = -1;
    let here = start;
    while (here !== -1 && links.has(here)) {
      addCrossing(line, field, size, level, here);
      const [one, two] = links.get(here);
      links.delete(here);
      const next = one === last ? two : one;
      last = here;
      if (next !== -1 && !links.has(next)) {
        if (next === start) addCrossing(line, field, size, level, start);
        break;
      }
      here = next;
    }
    lines.push(line);
  };
  // Lines that end at the border first, from their ends; what remains is closed.
  for (const [edge, [, second]] of [...links]) if (second === -1 && links.has(edge)) walk(edge);
  for (const edge of [...links.keys()]) if (links.has(edge)) walk(edge);
  return lines;
}

function addCrossing(line, field, size, level, edge) {
  const k = edge >> 1;
  const a = field[k];
  const b = field[edge & 1 ? k + size : k + 1];
  // Infinite beyond the border: the middle is as good as any place.
  const share = Number.isFinite(b) && Number.isFinite(a) ? (level - a) / (b - a) : 0.5;
  line.push((k % size) + (edge & 1 ? 0 : share), Math.floor(k / size) + (edge & 1 ? share : 0));
}
