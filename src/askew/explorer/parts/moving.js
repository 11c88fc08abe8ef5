// What the pointer and the keys do.

// ---------------------------------------------------------------- moving

function clamp([u, v]) {
  const [left, right, bottom, top] = plane.limits;
  return [Math.min(right, Math.max(left, u)), Math.min(top, Math.max(bottom, v))];
}

// Move c towards a place, as far as the divergence is defined.
function moveCentre(place) {
  const wanted = clamp(place);
  if (field.has(wanted)) state.c = wanted;
  else {
    let [low, high] = [0, 1];
    const between = (t) => state.c.map((value, k) => value + t * (wanted[k] - value));
    for (let i = 0; i < 12; i++) {
      const middle = (low + high) / 2;
      if (field.has(between(middle))) low = middle;
      else high = middle;
    }
    state.c = between(low);
  }
  request();
}

function moveProbe(place) {
  state.x = clamp(place);
  request();
}

// Make a data point the place that the plane goes through, and c that point.
function goTo(i) {
  if (scene.dim > 2) {
    element("held").value = "row";
    element("row").value = String(i);
    choosePlane();
  }
  if (isFar(plane.places[i])) element("whole").click();
  state.x = state.c;
  moveCentre(plane.places[i]);
  element("plane").focus({ preventScroll: true });
  speak();
}

function listen() {
  const canvas = element("plane");
  const pixels = (event) => {
    const frame = canvas.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  const distance = (place, pixel) => Math.hypot(...picture.toPixels(place).map((value, k) => value - pixel[k]));
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const pixel = pixels(event);
    canvas.setPointerCapture(event.pointerId);
    const touch = event.pointerType !== "mouse";
    if (touch && distance(state.x, pixel) < 26 && distance(state.c, pixel) > 20) state.dragging = "x";
    else {
      state.dragging = "c";
      // Somewhere else: c jumps there, and x marks where it was.
      if (distance(state.c, pixel) > 20) {
        state.x = state.c;
        moveCentre(picture.toPlace(pixel));
      }
    }
    canvas.classList.add("dragging");
    request();
  });
  canvas.addEventListener("pointermove", (event) => {
    const pixel = pixels(event);
    if (state.dragging === "c") moveCentre(picture.toPlace(pixel));
    else if (state.dragging === "x") moveProbe(picture.toPlace(pixel));
    else if (event.pointerType === "mouse") {
      const near = distance(state.c, pixel) < 16;
      canvas.classList.toggle("grab", near);
      if (!near) moveProbe(picture.toPlace(pixel));
    }
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, () => {
      state.dragging = null;
      canvas.classList.remove("dragging");
      request();
    });
  }
  canvas.addEventListener("focus", () => ((state.focused = true), request()));
  canvas.addEventListener("blur", () => ((state.focused = false), request()));
  canvas.addEventListener("keydown", (event) => {
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const [left, right, bottom, top] = plane.limits;
    if (arrows[event.key]) {
      const [p, q] = arrows[event.key];
      const from = event.shiftKey ? state.x : state.c;
      const place = [from[0] + 0.015 * p * (right - left), from[1] + 0.015 * q * (top - bottom)];
      if (event.shiftKey) moveProbe(place);
      else moveCentre(place);
    } else if (event.key === "PageUp" || event.key === "PageDown") {
      setShare(state.share + (event.key === "PageUp" ? 0.03 : -0.03));
    } else return;
    event.preventDefault();
    speak();
  });
  element("radius").addEventListener("input", (event) => setShare(Number(event.target.value)));
  for (const id of ["across", "up", "held", "row"]) element(id).addEventListener("change", choosePlane);
  element("whole").addEventListener("change", () => {
    scene.whole = element("whole").checked;
    choosePlane();
  });
  for (const id of ["colour", "levels", "count", "data-shown"]) element(id).addEventListener("change", request);
  new ResizeObserver(() => {
    picture.resize();
    request();
  }).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    picture.readColours();
    request();
  });
}

function setShare(share) {
  state.share = Math.min(1, Math.max(0, share));
  element("radius").value = String(state.share);
  request();
}
