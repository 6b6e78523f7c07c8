// Puts the page together: sections of charts, their controls, the sample browser, theme and downloads.

const data = JSON.parse(document.getElementById("data").textContent);
const charts = [];

/** Zoom all charts of a phase to `[from, to]`; null shows everything. */
function setZoom(phase, range) {
  const steps = charts.filter((chart) => chart.phase === phase).flatMap((chart) => [chart.allSteps()[0], chart.allSteps().at(-1)]);
  const low = Math.min(...steps), high = Math.max(...steps);
  const zoom = range && [Math.max(low, range[0]), Math.min(high, range[1])];
  view.zoom[phase] = zoom && zoom[1] - zoom[0] > 1e-9 && (zoom[0] > low || zoom[1] < high) ? zoom : null;
  document.getElementById("reset").disabled = !view.zoom.policy && !view.zoom.warmup;
  redraw((chart) => chart.phase === phase);
}

/** Draw again what has been drawn; the rest is drawn when it comes into view. */
function redraw(which = () => true) {
  charts.filter((chart) => chart.drawn && which(chart)).forEach((chart) => chart.draw());
}

function buildCharts() {
  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (entry.isIntersecting && !entry.target.chart.drawn) entry.target.chart.draw();
  }), { rootMargin: "400px" });
  const resized = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart.drawn && entry.target.chart.draw()));
  for (const section of data.sections) {
    const made = section.charts.map((spec) => new Chart(spec, section.phase, data.runs));
    const grid = el("div", { class: "grid" }, ...made.map((chart) => chart.figure));
    const note = section.note ? [el("p", { class: "note" }, section.note)] : [];
    const folded = section.title === "More metrics";
    document.getElementById("charts").append(folded
      ? el("details", { class: "folded" }, el("summary", {}, `${section.title} (${made.length})`), ...note, grid)
      : el("section", { "aria-label": section.title }, el("h2", {}, section.title), ...note, grid));
    for (const chart of made) {
      chart.plot.chart = chart;
      charts.push(chart);
      seen.observe(chart.plot);
      resized.observe(chart.plot);
    }
  }
}

function buildControls() {
  const smooth = document.getElementById("smooth"), value = document.getElementById("smooth-value");
  smooth.addEventListener("input", () => {
    view.smooth = Number(smooth.value);
    value.textContent = view.smooth ? view.smooth.toFixed(2) : "off";
    redraw();
  });
  document.getElementById("log").addEventListener("change", (event) => {
    view.log = event.target.checked;
    charts.forEach((chart) => { chart.log = null; });
    redraw();
  });
  document.getElementById("reset").addEventListener("click", () => ["policy", "warmup"].forEach((phase) => setZoom(phase, null)));
  document.getElementById("csv").addEventListener("click", download);
  document.querySelectorAll("[data-metric]").forEach((link) => link.addEventListener("click", (event) => show(event, link.dataset.metric)));
  document.getElementById("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  });
  document.getElementById("viewer").addEventListener("click", (event) => event.target === event.currentTarget && event.currentTarget.close());
  addEventListener("beforeprint", () => charts.forEach((chart) => chart.draw()));
}

/** Scroll to the chart of a metric that a finding names. */
function show(event, metric) {
  const figure = charts.map((chart) => chart.figure).find((candidate) => candidate.dataset.metrics.split(" ").includes(metric));
  if (!figure) return;
  event.preventDefault();
  figure.closest("details")?.setAttribute("open", "");
  figure.scrollIntoView({ block: "center" });
  figure.classList.add("lit");
  setTimeout(() => figure.classList.remove("lit"), 2500);
  figure.querySelector(".plot").focus({ preventScroll: true });
}

/** The curves as `run,phase,metric,step,value`. */
function download() {
  const quote = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const lines = ["run,phase,metric,step,value"];
  for (const run of data.runs) {
    for (const phase of ["policy", "warmup"]) {
      for (const [metric, [steps, values]] of Object.entries(run[phase])) {
        steps.forEach((step, i) => lines.push([quote(run.name), phase, quote(metric), step, values[i] ?? ""].join(",")));
      }
    }
  }
  const address = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
  el("a", { href: address, download: "metrics.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

buildCharts();
buildControls();
const browser = document.getElementById("browser");
if (browser) new Browser(browser, data.samples, data.runs);
document.documentElement.dataset.ready = "true";
