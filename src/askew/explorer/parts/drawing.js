// The picture: a field of colours, lines, axes, data, and the points c and x.

const SHAPES = ["circle", "square", "triangle", "diamond"];

class Picture {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.image = document.createElement("canvas");
    this.still = document.createElement("canvas");
    this.readColours();
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.colours = { classes: Array.from({ length: 8 }, (_, k) => colour(`class-${k + 1}`)) };
    for (const name of ["plane", "ink", "faint", "line", "first", "second", "outside", "other", "halo"]) this.colours[name] = colour(name);
    this.rgb = Object.fromEntries(["plane", "first", "second", "outside"].map((name) => [name, parseColour(this.colours[name])]));
  }

  // Fit the bitmap to the room there is; axes keep their size in pixels.
  resize() {
    const scale = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.scale = scale;
    const side = Math.max(80, Math.min(width - 62, height - 54));
    this.box = { left: Math.round(50 + (width - 62 - side) / 2), top: 8, width: side, height: side };
  }

  setLimits(limits) {
    this.limits = limits;
  }

  toPixels([u, v]) {
    const [left, right, bottom, top] = this.limits;
    const { box } = this;
    return [box.left + ((u - left) / (right - left)) * box.width, box.top + ((top - v) / (top - bottom)) * box.height];
  }

  toPlace([x, y]) {
    const [left, right, bottom, top] = this.limits;
    const { box } = this;
    return [left + ((x - box.left) / box.width) * (right - left), top - ((y - box.top) / box.height) * (top - bottom)];
  }

  begin() {
    const { context, colours, box, scale } = this;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.fillStyle = colours.plane;
    context.fillRect(box.left, box.top, box.width, box.height);
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.width, box.height);
    context.clip();
  }

  // One colour for each cell: the shade of the field, and over it the two balls. `shade` gives a number from -1 to 1,
  // towards the colours of the second and the first direction.
  cells(size, forth, back, radius, shade) {
    const { plane, first, second, outside } = this.rgb;
    if (this.image.width !== size) {
      this.image.width = this.image.height = size;
      this.pixels = this.image.getContext("2d").createImageData(size, size);
    }
    const data = this.pixels.data;
    const covered = [0, 0];
    let defined = 0;
    for (let i = 0; i < size; i++) {
      for (let j = 0; j < size; j++) {
        const k = i * size + j;
        const a = forth[k], b = back[k];
        const p = 4 * ((size - 1 - i) * size + j); // pictures have their first row at the top
        data[p + 3] = 255;
        if (Number.isNaN(a) || Number.isNaN(b)) {
          for (let m = 0; m < 3; m++) data[p + m] = outside[m];
          continue;
        }
        defined++;
        const next = j + 1 < size ? k + 1 : k - 1;
        const above = i + 1 < size ? k + size : k - size;
        const inFirst = coverage(radius, a, forth[next], forth[above]);
        const inSecond = coverage(radius, b, back[next], back[above]);
        covered[0] += inFirst;
        covered[1] += inSecond;
        const tone = shade === null ? 0 : shade(a, b);
        const tint = tone > 0 ? first : second;
        const weight = 0.42 * Math.abs(tone);
        const x = 0.17 * inFirst, y = 0.17 * inSecond;
        for (let m = 0; m < 3; m++) {
          let value = plane[m] + weight * (tint[m] - plane[m]);
          value += x * (first[m] - value);
          data[p + m] = value + y * (second[m] - value);
        }
      }
    }
    this.image.getContext("2d").putImageData(this.pixels, 0, 0);
    const { context, box } = this;
    context.imageSmoothingEnabled = true;
    context.drawImage(this.image, box.left, box.top, box.width, box.height);
    return covered.map((sum) => (defined ? sum / defined : 0));
  }

  // What does not change while c moves is painted once, until its key is another one.
  layer(key, paint) {
    const { width, height } = this.canvas;
    const whole = `${key} ${width} ${height} ${this.colours.plane}`;
    if (this.painted !== whole) {
      this.painted = whole;
      Object.assign(this.still, { width, height });
      const main = this.context;
      this.context = this.still.getContext("2d");
      this.context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
      paint();
      this.context = main;
    }
    this.context.drawImage(this.still, 0, 0, width / this.scale, height / this.scale);
  }

  // Lines in units of cells, as contours() returns them.
  lines(lines, size, colour, width, dash = []) {
    const { context, box } = this;
    const path = new Path2D();
    for (const line of lines) {
      for (let i = 0; i < line.length; i += 2) {
        const x = box.left + ((line[i] + 0.5) / size) * box.width;
        const y = box.top + box.height - ((line[i + 1] + 0.5) / size) * box.height;
        if (i) path.lineTo(x, y);
        else path.moveTo(x, y);
      }
    }
    context.lineJoin = "round";
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.stroke(path);
    context.setLineDash([]);
  }

  mark(place, shape, size, fill, stroke, width = 1) {
    const { context } = this;
    const [x, y] = this.toPixels(place);
    context.beginPath();
    shapePath(context, shape, x, y, size);
    context.fillStyle = fill;
    context.fill();
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = width;
      context.stroke();
    }
  }

  // At the edge, pointing towards a place outside.
  arrow(place, fill) {
    const { context, box } = this;
    const [x, y] = this.toPixels(place);
    const [middle, centre] = [box.left + box.width / 2, box.top + box.height / 2];
    const reach = Math.min((box.width / 2 - 8) / Math.abs(x - middle), (box.height / 2 - 8) / Math.abs(y - centre));
    context.save();
    context.translate(middle + reach * (x - middle), centre + reach * (y - centre));
    context.rotate(Math.atan2(y - centre, x - middle) + Math.PI / 2);
    context.beginPath();
    shapePath(context, "triangle", 0, 0, 5);
    context.fillStyle = fill;
    context.fill();
    context.restore();
  }

  ring(place, size, colour, from, dash = []) {
    const { context } = this;
    const [x, y] = this.toPixels(place);
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.globalAlpha = 0.55;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(...this.toPixels(from));
    context.lineTo(x, y);
    context.stroke();
    context.globalAlpha = 1;
    context.setLineDash([]);
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x, y, size, 0, 2 * Math.PI);
    context.stroke();
  }

  handle(place, letter, active) {
    const { context, colours } = this;
    const [x, y] = this.toPixels(place);
    context.beginPath();
    context.arc(x, y, active ? 12 : 10.5, 0, 2 * Math.PI);
    context.fillStyle = colours.ink;
    context.fill();
    context.lineWidth = 2.5;
    context.strokeStyle = colours.halo;
    context.stroke();
    context.fillStyle = colours.halo;
    context.font = "600 13px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(letter, x, y - 0.5);
  }

  cross(place, letter) {
    const { context, colours } = this;
    const [x, y] = this.toPixels(place);
    context.beginPath();
    for (const s of [-1, 1]) {
      context.moveTo(x - 5, y - 5 * s);
      context.lineTo(x + 5, y + 5 * s);
    }
    context.lineWidth = 4.5;
    context.strokeStyle = colours.halo;
    context.stroke();
    context.lineWidth = 2;
    context.strokeStyle = colours.ink;
    context.stroke();
    context.font = "600 13px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.lineWidth = 3;
    context.strokeStyle = colours.halo;
    context.strokeText(letter, x + 9, y - 1);
    context.fillStyle = colours.ink;
    context.fillText(letter, x + 9, y - 1);
  }

  // Axes, after everything inside of them.
  end(names) {
    const { context, colours, box, limits } = this;
    context.restore();
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.strokeRect(box.left + 0.5, box.top + 0.5, box.width - 1, box.height - 1);
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = colours.faint;
    const bottom = box.top + box.height;
    const count = Math.max(4, Math.round(box.width / 90));
    context.textBaseline = "top";
    context.textAlign = "center";
    for (const { value, text } of ticks(limits[0], limits[1], count)) {
      const [x] = this.toPixels([value, 0]);
      context.fillRect(x - 0.5, bottom, 1, 4);
      context.fillText(text, Math.min(x, box.left + box.width - 8), bottom + 7);
    }
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const { value, text } of ticks(limits[2], limits[3], count)) {
      const [, y] = this.toPixels([0, value]);
      context.fillRect(box.left - 4, y - 0.5, 4, 1);
      context.fillText(text, box.left - 7, Math.min(Math.max(y, box.top + 5), bottom - 5), 30);
    }
    context.fillStyle = colours.ink;
    context.font = "13px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "bottom";
    context.fillText(clipped(context, names[0], box.width), box.left + box.width / 2, bottom + 42);
    context.save();
    context.translate(box.left - 49, box.top + box.height / 2);
    context.rotate(-Math.PI / 2);
    context.textBaseline = "top";
    context.fillText(clipped(context, names[1], box.height), 0, 0);
    context.restore();
  }
}

// How much of a cell lies within the radius, from how fast the field changes there: an even edge instead of steps.
function coverage(radius, value, next, above) {
  const slope = Math.abs(next - value) + Math.abs(above - value);
  if (!(slope > 0) || slope === Infinity) return value <= radius ? 1 : 0;
  return Math.min(1, Math.max(0, 0.5 + (radius - value) / slope));
}

function shapePath(context, shape, x, y, size) {
  if (shape === "circle") context.arc(x, y, size, 0, 2 * Math.PI);
  else if (shape === "square") context.rect(x - 0.88 * size, y - 0.88 * size, 1.76 * size, 1.76 * size);
  else {
    const corners = shape === "triangle" ? [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]] : [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]];
    corners.forEach(([p, q], i) => (i ? context.lineTo(x + p * size, y + q * size) : context.moveTo(x + p * size, y + q * size)));
    context.closePath();
  }
}

function parseColour(text) {
  return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
}

function clipped(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && context.measureText(text.slice(0, length) + "…").width > room) length--;
  return text.slice(0, length) + "…";
}
