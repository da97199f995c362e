const report = JSON.parse(document.getElementById("report").textContent);
const heat = document.getElementById("heat"), pick = document.getElementById("metric");

function shade(metric) {
  const about = report.metrics[metric];
  const cells = [...heat.querySelectorAll("td.cell[data-row]")];
  const values = cells.map(c => report.rows[+c.dataset.row].figures[metric]?.median);
  const logs = values.filter(v => v > 0).map(Math.log), low = Math.min(...logs), high = Math.max(...logs);
  cells.forEach((cell, n) => {
    const value = values[n];
    if (value === undefined) { cell.textContent = "–"; return; }
    let good = high > low && value > 0 ? (Math.log(value) - low) / (high - low) : 0.5;
    if (about.better === "lower") good = 1 - good;
    cell.textContent = show(value);
    cell.style.background = `color-mix(in srgb, var(--good) ${Math.round(8 + 62 * good)}%, transparent)`;
    cell.title = `${report.rows[+cell.dataset.row].label}: ${show(value)} ${about.unit}`;
  });
  document.getElementById("unit").textContent = `${about.unit}, ${about.better} is better`;
  heat.dataset.metric = metric;
}

function show(value) {
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

async function copy(node) {
  try { await navigator.clipboard.writeText(node.textContent); }
  catch { getSelection().selectAllChildren(node); document.execCommand("copy"); }
}

function sort(head) {
  const table = head.closest("table"), column = head.cellIndex, body = table.tBodies[0];
  const up = head.getAttribute("aria-sort") !== "ascending";
  const key = row => { const raw = row.cells[column].dataset.value; return raw === undefined ? row.cells[column].textContent : +raw; };
  const rows = [...body.rows].sort((a, b) => { const x = key(a), y = key(b); return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1); });
  table.querySelectorAll("th").forEach(th => th.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...rows);
}

pick?.addEventListener("change", () => shade(pick.value));
document.querySelectorAll("th[data-sort]").forEach(head => head.addEventListener("click", () => sort(head)));
document.querySelectorAll(".paste button").forEach(button => button.addEventListener("click", () => {
  copy(button.nextElementSibling).then(() => { button.textContent = "copied"; });
}));
const asked = new URLSearchParams(location.hash.slice(1));
if (pick && report.metrics[asked.get("metric")]) pick.value = asked.get("metric");
if (heat) shade(pick.value);
const column = document.querySelector(`th[data-sort="${CSS.escape(asked.get("sort") ?? "")}"]`);
if (column) sort(column);
