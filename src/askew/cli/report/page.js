// Sorts a table by a column and switches classes of the maps on and off; both work by keyboard, as they are buttons.
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent; head.textContent = ""; head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      table.querySelectorAll("thead th").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = table.tBodies[0];
      const value = row => { const text = row.cells[column].textContent; const number = parseFloat(text);
        return Number.isNaN(number) ? text : number; };
      const rows = [...body.rows].sort((a, b) => { const x = value(a), y = value(b);
        const order = typeof x === typeof y ? (x > y) - (x < y) : typeof x === "number" ? 1 : -1;
        return up ? order : -order; });
      body.append(...rows);
    });
  });
}
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", shown);
    for (const group of document.querySelectorAll(`g.class[data-class="${button.dataset.class}"]`))
      group.style.display = shown ? "" : "none";
  });
}
