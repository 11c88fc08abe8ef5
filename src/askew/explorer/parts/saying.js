// What is seen, written next to the picture and spoken after keys.

// ---------------------------------------------------------------- words

function setText(id, text) {
  const node = element(id);
  if (node.textContent !== text) node.textContent = text;
}

function say() {
  const { r, forth, back, covered, near } = seen;
  setText("radius-value", shown(r));
  setText("says", asymmetryWords(forth, back, symmetric()));
  const most = Math.max(Number.isFinite(forth) ? forth : 0, Number.isFinite(back) ? back : 0) || 1;
  element("bar-first").style.width = `${100 * Math.min(1, (forth || 0) / most)}%`;
  element("bar-second").style.width = `${100 * Math.min(1, (back || 0) / most)}%`;
  setText("value-first", shown(forth));
  setText("value-second", shown(back));
  setText("inside", `${near ? countWords(near.inside, scene.n) + " " : ""}${areaWords(...covered)}`);
  if (!near) return;
  element("neighbours").hidden = near.first.length === 0;
  setText("agreement", agreementWords(near.first, near.second, content.labels, symmetric()));
  setText("far", farWords(plane.places.filter(isFar).length, scene.n));
  fillTable("table-first", near.first, near, 0);
  fillTable("table-second", near.second, near, 1);
}

function fillTable(id, rows, near, by) {
  const body = element(id);
  while (body.rows.length > rows.length) body.deleteRow(-1);
  while (body.rows.length < rows.length) {
    const row = body.insertRow();
    const button = document.createElement("button");
    button.type = "button";
    button.addEventListener("click", () => goTo(Number(button.dataset.index)));
    row.insertCell().append(button);
    const name = row.insertCell();
    name.className = "labelled";
    name.append(document.createElement("span"), document.createElement("span"));
    for (const k of [0, 1]) row.insertCell().className = (k === by ? "by" : "") + (k ? " other" : "");
  }
  rows.forEach((i, k) => {
    const { cells } = body.rows[k];
    const button = cells[0].firstChild;
    const texts = [nameOf(i), content.labels ? content.labels[i] : "–", shown(near.forth[i]), shown(near.back[i])];
    if (button.dataset.index !== String(i)) {
      button.dataset.index = String(i);
      button.textContent = texts[0];
      button.title = `Move c to ${texts[0]}${content.training?.[i] ? ", a training point" : ""}`;
      const { shape, variable } = look(i);
      const [glyph, label] = cells[1].children;
      glyph.textContent = content.labels ? `${GLYPHS[shape]} ` : "";
      glyph.style.color = `var(${variable})`;
      label.textContent = texts[1];
      cells[1].title = texts[1];
    }
    for (const m of [2, 3]) if (cells[m].textContent !== texts[m]) cells[m].textContent = texts[m];
  });
}

let speech = 0;
function speak() {
  clearTimeout(speech);
  const place = (p) => p.map(shown).join(", ");
  speech = setTimeout(() => {
    setText("spoken", `c at ${place(state.c)}. x at ${place(state.x)}. D of x and c ${shown(seen.forth)}, of c and x ${shown(seen.back)}. ${asymmetryWords(seen.forth, seen.back, symmetric())} ${element("inside").textContent}`);
  }, 500);
}
