"use strict";
// Charts as SVG: one figure a chart, drawn when it comes into view, and again when size, zoom, smoothing or scale change.

const view = { smooth: 0, log: false, zoom: { policy: null, warmup: null } };
const MARGIN = { left: 54, right: 12, top: 12, bottom: 24 };

/** An HTML element; strings among the children become text, never markup. */
function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Debiased exponential moving average; gaps stay gaps. */
function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0, mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/** About `count` round numbers from `low` to `high`. */
function ticks(low, high, count, log) {
  if (log) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), every = Math.ceil((last - first + 1) / count);
    const found = [];
    for (let power = first; power <= last; power += every) found.push(10 ** power);
    const inside = (values) => values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    if (inside(found).length >= 2) return inside(found);
    const finer = inside([first - 1, first, last].flatMap((power) => [1, 2, 5].map((factor) => factor * 10 ** power)));
    return finer.length >= 2 ? [...new Set(finer)] : ticks(low, high, count, false);
  }
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i === 0 ? 0 : i * step);
  return found;
}

/** A number for people; `step` is the distance of ticks, which says how many decimals matter. */
function readable(value, step = 0) {
  if (value === null || value === undefined) return "not finite";
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e7)) return value.toExponential(3).replace(/\.?0+e/, "e").replace("+", "");
  if (step) return value.toLocaleString("en", { maximumFractionDigits: Math.min(10, Math.max(0, Math.ceil(-Math.log10(step)) + 1)) });
  if (size >= 1e4) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(Math.abs(value - 1) < 1e-3 ? 8 : 5)));
}

class Chart {
  constructor(spec, phase, runs) {
    this.spec = spec;
    this.phase = phase;
    this.log = null; // null: as the page's switch and the chart's default say
    this.wide = false;
    this.cursor = null;
    this.stack = spec.kind === "stack" && runs.length === 1;
    this.lines = [];
    spec.series.forEach((metric, order) => runs.forEach((run, index) => {
      const found = run[phase][metric];
      if (!found) return;
      const color = spec.series.length === 1 ? index : order;
      const label = spec.series.length === 1 && runs.length === 1 ? metric : (runs.length > 1 ? "AB"[index] + " " : "") + this.short(metric);
      const band = spec.band[metric] ? run[phase][spec.band[metric]] : null;
      const width = band ? new Map(band[0].map((step, i) => [step, band[1][i]])) : null;
      this.lines.push({ metric, label, steps: found[0], values: found[1], color: `var(--c${color % 8})`, dash: index === 1, width, hidden: false });
    }));
    this.build();
  }

  short(metric) {
    const cut = (name) => name.slice(name.indexOf("/") + 1);
    return this.spec.series.filter((other) => cut(other) === cut(metric)).length > 1 || this.spec.series.length === 1 ? metric : cut(metric);
  }

  build() {
    const about = Object.entries(this.spec.about).map(([name, text]) => `${name}: ${text}`).join("\n");
    this.logButton = el("button", { type: "button", "aria-pressed": "false", title: "Logarithmic scale", onclick: () => { this.log = !this.isLog(); this.draw(); } }, "log");
    this.wideButton = el("button", { type: "button", "aria-pressed": "false", title: "Larger", "aria-label": "Larger", onclick: () => this.enlarge() }, "⤢");
    this.plot = el("div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "chart" });
    this.legend = el("div", { class: "legend" });
    this.figure = el("figure", { "data-metrics": this.spec.series.join(" ") },
      el("figcaption", {}, el("h3", { title: about || null }, this.spec.title), this.logButton, this.wideButton), this.plot, this.legend);
    this.tip = el("div", { class: "tip", role: "status", hidden: "" });
    this.plot.addEventListener("pointermove", (event) => this.hover(event));
    this.plot.addEventListener("pointerleave", () => this.drag || this.point(null));
    this.plot.addEventListener("pointerdown", (event) => this.press(event));
    this.plot.addEventListener("pointerup", (event) => this.release(event));
    this.plot.addEventListener("pointercancel", () => { this.drag = null; });
    this.plot.addEventListener("dblclick", () => setZoom(this.phase, null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.point(null));
    const steps = this.allSteps();
    const last = this.lines[0] ? this.lines[0].values.at(-1) : null;
    this.plot.setAttribute("aria-label", `${this.spec.title}: ${steps.length} steps, last value ${readable(last)}. Arrow keys read values, plus and minus zoom.`);
  }

  isLog() {
    return this.log ?? (view.log || this.spec.log);
  }

  enlarge() {
    this.wide = !this.wide;
    this.figure.classList.toggle("wide", this.wide);
    this.wideButton.setAttribute("aria-pressed", this.wide);
    this.draw();
  }

  allSteps() {
    this.steps ??= [...new Set(this.lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
    return this.steps;
  }

  /** What is drawn of each visible line: points inside the zoom, smoothed. */
  visible() {
    const [from, to] = this.domain;
    return this.lines.filter((line) => !line.hidden).map((line) => {
      const soft = smoothed(line.values, view.smooth), points = [];
      line.steps.forEach((step, i) => {
        if (step >= from && step <= to) points.push({ step, raw: line.values[i], value: soft[i], half: line.width?.get(step) ?? 0 });
      });
      return { line, points };
    });
  }

  draw() {
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    if (!width) return;
    this.drawn = true;
    const steps = this.allSteps();
    this.domain = view.zoom[this.phase] ?? [steps[0], steps.at(-1)];
    if (this.domain[0] === this.domain[1]) this.domain = [this.domain[0] - 1, this.domain[1] + 1];
    const sets = this.visible(), log = this.isLog() && !this.stack;
    const stacked = this.stack ? this.layers(sets) : null;
    const [low, high] = this.range(sets, stacked, log);
    const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
    const [from, to] = this.domain;
    this.x = (step) => MARGIN.left + (step - from) / (to - from) * (right - MARGIN.left);
    const scale = log ? Math.log10 : (value) => value;
    this.y = (value) => bottom - (scale(value) - scale(low)) / (scale(high) - scale(low)) * (bottom - MARGIN.top);
    this.inverse = (pixel) => from + (pixel - MARGIN.left) / (right - MARGIN.left) * (to - from);
    const root = shape("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    this.axes(root, low, high, log, right, bottom);
    if (stacked) this.drawLayers(root, stacked);
    else sets.forEach((set) => this.drawLine(root, set, log));
    const off = this.limits(root, low, high, right);
    this.holes(root, sets);
    this.overlay = root.appendChild(shape("g"));
    this.plot.replaceChildren(root, this.tip);
    this.logButton.setAttribute("aria-pressed", log);
    this.logButton.hidden = this.stack;
    this.drawLegend(off);
    this.point(this.cursor);
  }

  range(sets, stacked, log) {
    const values = stacked ? [0, ...stacked.top] : sets.flatMap(({ points }) => points.flatMap(({ raw, value, half }) =>
      value === null ? [] : view.smooth && !log ? [value, raw] : half ? [value - half, value + half, raw] : [raw, value]));
    const usable = log ? values.filter((value) => value > 0) : values;
    if (!usable.length) return log ? [0.1, 1] : [0, 1];
    let low = usable.reduce((a, b) => Math.min(a, b)), high = usable.reduce((a, b) => Math.max(a, b));
    if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
    if (log) {
      const limits = this.spec.limits.map(({ value }) => value).filter((value) => value > low / 30 && value < high * 30);
      return [Math.min(low, ...limits) / 1.2, Math.max(high, ...limits) * 1.2];
    }
    const near = this.spec.limits.map(({ value }) => value).filter((value) => value >= low - (high - low) && value <= high + (high - low));
    low = Math.min(low, ...near); high = Math.max(high, ...near);
    if (stacked) return [0, high * 1.03];
    const pad = (high - low) * 0.06;
    return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
  }

  axes(root, low, high, log, right, bottom) {
    const rows = ticks(low, high, this.wide ? 7 : 4, log);
    const gap = log ? 0 : (rows[1] ?? high) - rows[0];
    for (const value of rows) {
      const y = this.y(value);
      root.append(shape("line", { class: "gridline", x1: MARGIN.left, x2: right, y1: y, y2: y }),
        shape("text", { x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, log ? readable(value) : readable(value, gap)));
    }
    const columns = ticks(...this.domain, Math.max(2, Math.floor((right - MARGIN.left) / 80)), false).filter(Number.isInteger);
    for (const step of columns) {
      root.append(shape("text", { x: this.x(step), y: bottom + 17, "text-anchor": "middle" }, step.toLocaleString("en")));
    }
    root.append(shape("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));
  }

  path(points, at, log) {
    let text = "", pen = "M", alone = false;
    for (const point of points) {
      const value = at(point);
      if (value === null || (log && value <= 0)) { pen = "M"; continue; }
      text += `${pen}${this.x(point.step).toFixed(1)} ${this.y(value).toFixed(1)}`;
      alone = pen === "M";
      pen = "L";
    }
    return alone && points.length === 1 ? text + "h0.1" : text;
  }

  drawLine(root, { line, points }, log) {
    const style = `stroke: ${line.color}`, dash = line.dash ? " dash" : "";
    if (line.width && !log) {
      const known = points.filter(({ value }) => value !== null);
      const edge = (sign) => known.map(({ step, value, half }) => `${this.x(step).toFixed(1)} ${this.y(value + sign * half).toFixed(1)}`);
      if (known.length > 1) root.append(shape("path", { class: "band", style: `fill: ${line.color}`, d: `M${[...edge(1), ...edge(-1).reverse()].join("L")}Z` }));
    }
    if (view.smooth) root.append(shape("path", { class: "line faint", style, d: this.path(points, ({ raw }) => raw, log) }));
    root.append(shape("path", { class: `line${dash}`, style, d: this.path(points, ({ value }) => value, log) }));
    if (points.length <= 40) {
      for (const { step, value } of points) {
        if (value !== null && !(log && value <= 0)) root.append(shape("circle", { cx: this.x(step), cy: this.y(value), r: 2.4, style: `fill: ${line.color}` }));
      }
    }
  }

  /** Cumulated values of the lines at each step. */
  layers(sets) {
    const steps = this.allSteps().filter((step) => step >= this.domain[0] && step <= this.domain[1]);
    const top = steps.map(() => 0);
    const layers = sets.map(({ line, points }) => {
      const known = new Map(points.map(({ step, value }) => [step, value ?? 0])), base = [...top];
      steps.forEach((step, i) => { top[i] += known.get(step) ?? 0; });
      return { line, base, top: [...top] };
    });
    return { steps, layers, top };
  }

  drawLayers(root, { steps, layers }) {
    for (const { line, base, top } of layers) {
      const edge = (values) => steps.map((step, i) => `${this.x(step).toFixed(1)} ${this.y(values[i]).toFixed(1)}`);
      root.append(shape("path", { class: "area", style: `fill: ${line.color}`, d: `M${[...edge(top), ...edge(base).reverse()].join("L")}Z` }));
    }
  }

  /** Draws the limits that are in sight; returns the others. */
  limits(root, low, high, right) {
    return this.spec.limits.filter(({ label, level, value }) => {
      if (value < low || value > high) return true;
      const y = this.y(value);
      root.append(shape("line", { class: `limit ${level}`, x1: MARGIN.left, x2: right, y1: y, y2: y }),
        shape("text", { class: `limit-label ${level}`, x: right - 2, y: y > MARGIN.top + 14 ? y - 4 : y + 12, "text-anchor": "end" }, `${label} ${readable(value)}`));
      return false;
    });
  }

  holes(root, sets) {
    for (const { line, points } of sets) {
      for (const { step, raw } of points) {
        if (raw === null) root.append(shape("text", { class: "hole", x: this.x(step), y: MARGIN.top + 8, "text-anchor": "middle" }, "×", shape("title", {}, `${line.metric} is not finite at step ${step}`)));
      }
    }
  }

  drawLegend(off) {
    const entries = this.lines.map((line) => el("button", { type: "button", "aria-pressed": String(!line.hidden), title: this.spec.about[line.metric] ?? line.metric,
      onclick: () => { line.hidden = !line.hidden; this.draw(); } }, el("i", { class: line.dash && "dash", style: `border-color: ${line.color}` }), line.label));
    const far = off.map(({ label, value }) => el("span", { class: "off" }, `${label} ${readable(value)} (out of sight)`));
    const focused = this.legend.contains(document.activeElement) ? [...this.legend.children].indexOf(document.activeElement) : -1;
    this.legend.replaceChildren(...entries, ...far);
    if (focused >= 0) this.legend.children[focused]?.focus();
  }

  nearest(pixel) {
    const wanted = this.inverse(pixel);
    return this.allSteps().reduce((best, step) => Math.abs(step - wanted) < Math.abs(best - wanted) ? step : best);
  }

  /** Show the values at `step` (null: none). */
  point(step) {
    this.cursor = step;
    if (!this.overlay) return;
    this.overlay.replaceChildren();
    this.tip.hidden = step === null || step < this.domain[0] || step > this.domain[1];
    if (this.tip.hidden) return;
    const x = this.x(step), bottom = this.plot.clientHeight - MARGIN.bottom;
    this.overlay.append(shape("line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: bottom }));
    const rows = [el("div", {}, el("strong", {}, `step ${step.toLocaleString("en")}`))];
    for (const line of this.lines.filter(({ hidden }) => !hidden)) {
      const at = line.steps.indexOf(step);
      if (at < 0) continue;
      const half = line.width?.get(step);
      rows.push(el("div", {}, el("span", { style: `color: ${line.color}` }, line.label), el("span", {}, readable(line.values[at]) + (half ? ` ± ${readable(half)}` : ""))));
    }
    this.tip.replaceChildren(...rows);
    const left = x > this.plot.clientWidth / 2 ? x - this.tip.offsetWidth - 12 : x + 12;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = "8px";
  }

  offset(event) {
    return event.clientX - this.plot.getBoundingClientRect().left;
  }

  hover(event) {
    if (!this.x) return;
    this.point(this.nearest(this.offset(event)));
    if (this.drag === undefined || this.drag === null) return;
    const from = Math.min(this.drag, this.offset(event)), to = Math.max(this.drag, this.offset(event));
    this.overlay.append(shape("rect", { class: "selection", x: from, width: to - from, y: MARGIN.top, height: this.plot.clientHeight - MARGIN.bottom - MARGIN.top }));
  }

  press(event) {
    if (event.pointerType === "touch" || event.button !== 0) return;
    this.drag = this.offset(event);
    this.plot.setPointerCapture(event.pointerId);
  }

  release(event) {
    const from = this.drag, to = this.offset(event);
    this.drag = null;
    if (from === undefined || from === null || Math.abs(to - from) < 8) return;
    setZoom(this.phase, [this.inverse(Math.min(from, to)), this.inverse(Math.max(from, to))]);
  }

  key(event) {
    const steps = this.allSteps().filter((step) => step >= this.domain[0] && step <= this.domain[1]);
    const at = this.cursor === null ? -1 : steps.indexOf(this.cursor), far = event.shiftKey ? 10 : 1, [from, to] = this.domain;
    const middle = this.cursor ?? (from + to) / 2;
    const moves = {
      ArrowRight: () => this.point(steps[Math.min(steps.length - 1, at + far)]),
      ArrowLeft: () => this.point(steps[at < 0 ? steps.length - 1 : Math.max(0, at - far)]),
      Home: () => this.point(steps[0]),
      End: () => this.point(steps.at(-1)),
      "+": () => setZoom(this.phase, [middle - (to - from) / 4, middle + (to - from) / 4]),
      "-": () => setZoom(this.phase, [middle - (to - from), middle + (to - from)]),
      Escape: () => { this.point(null); setZoom(this.phase, null); },
    };
    const move = moves[event.key === "=" ? "+" : event.key];
    if (!move) return;
    event.preventDefault();
    move();
  }
}
