// The sample browser: groups of completions, filtered, with their pictures.

const PAGE = 10;

class Browser {
  constructor(root, samples, runs) {
    this.root = root;
    this.samples = samples;
    this.runs = runs;
    this.shown = PAGE;
    const rewards = samples.groups.flatMap((group) => group.c.map((completion) => completion[1])).filter((reward) => reward !== null);
    this.low = rewards.reduce((a, b) => Math.min(a, b), Infinity);
    this.high = rewards.reduce((a, b) => Math.max(a, b), -Infinity);
    this.build();
    this.update();
  }

  build() {
    const steps = [...new Set(this.samples.groups.map(({ s }) => s))].sort((a, b) => a - b);
    const reasons = [...new Set(this.samples.groups.flatMap((group) => group.c.map((completion) => completion[3])))].sort();
    const option = (value, text) => el("option", { value }, text);
    const bounds = { type: "number", step: "any", placeholder: "any" };
    const pick = (...options) => el("select", {}, ...options);
    this.fields = {
      text: el("input", { type: "search", placeholder: "in completions, prompts and answers" }),
      prompt: el("input", { type: "search", placeholder: "any" }),
      step: pick(option("", "all"), ...steps.map((step) => option(step, String(step)))),
      min: el("input", bounds), max: el("input", bounds),
      stop: pick(option("", "any"), ...reasons.map((reason) => option(reason, reason))),
      order: pick(option("late", "latest first"), option("early", "earliest first"), option("low", "lowest reward first"), option("high", "highest reward first")),
    };
    const labels = { text: "Search", prompt: "Prompt id", step: "Step", min: "Reward from", max: "Reward to", stop: "Stop reason", order: "Order" };
    if (this.runs.length > 1) {
      this.fields.run = pick(option("pair", "both, paired by prompt"), option("0", `A · ${this.runs[0].name}`), option("1", `B · ${this.runs[1].name}`));
      labels.run = "Run";
    }
    let timer = null;
    for (const [name, field] of Object.entries(this.fields)) {
      field.id = `filter-${name}`;
      const wait = field.tagName === "INPUT" ? 120 : 0;
      field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => { this.shown = PAGE; this.update(); }, wait); });
    }
    const filters = Object.entries(this.fields).map(([name, field]) => el("label", { class: name === "text" && "search" }, labels[name], field));
    this.count = el("p", { class: "muted", role: "status" });
    this.list = el("div");
    this.more = el("button", { type: "button", class: "more", onclick: () => this.grow() }, "Show more");
    this.root.replaceChildren(el("div", { class: "filters", role: "search", "aria-label": "Filter samples" }, ...filters), this.count, this.list, this.more);
  }

  grow() {
    const first = this.shown;
    this.shown += PAGE;
    this.update();
    this.list.children[first]?.focus();
  }

  /** Lower-case text of a prompt, made when it is first needed. */
  haystack(prompt) {
    prompt.text ??= [prompt.id, prompt.a, ...prompt.m.flatMap(([, parts]) => parts.filter((part) => typeof part === "string"))].join("\n").toLowerCase();
    return prompt.text;
  }

  /** Positions of the completions of `group` that the filters let through. */
  matching(group, wanted) {
    const prompt = this.samples.prompts[group.p];
    if (wanted.step !== "" && group.s !== Number(wanted.step)) return [];
    if (wanted.prompt && !prompt.id.toLowerCase().includes(wanted.prompt)) return [];
    const inPrompt = !wanted.text || this.haystack(prompt).includes(wanted.text);
    const found = [];
    group.c.forEach(([text, reward, , reason], i) => {
      if (wanted.min !== "" && !(reward >= Number(wanted.min))) return;
      if (wanted.max !== "" && !(reward <= Number(wanted.max))) return;
      if (wanted.stop && reason !== wanted.stop) return;
      if (inPrompt || text.toLowerCase().includes(wanted.text)) found.push(i);
    });
    return found;
  }

  update() {
    const wanted = Object.fromEntries(Object.entries(this.fields).map(([name, field]) => [name, field.value.trim()]));
    wanted.text = wanted.text.toLowerCase();
    wanted.prompt = wanted.prompt.toLowerCase();
    this.mark = wanted.text;
    let hits = this.samples.groups.map((group) => ({ group, at: this.matching(group, wanted) })).filter(({ at }) => at.length);
    if (wanted.run === "0" || wanted.run === "1") hits = hits.filter(({ group }) => group.r === Number(wanted.run));
    const mean = ({ group, at }) => at.reduce((sum, i) => sum + (group.c[i][1] ?? 0), 0) / at.length;
    const orders = { late: (a, b) => b.group.s - a.group.s, early: (a, b) => a.group.s - b.group.s, low: (a, b) => mean(a) - mean(b), high: (a, b) => mean(b) - mean(a) };
    hits.sort(orders[wanted.order]);
    const entries = wanted.run === "pair" ? this.pairs(hits) : hits.map((hit) => [hit]);
    const all = this.samples.groups.reduce((sum, group) => sum + group.c.length, 0);
    const kept = entries.flat().reduce((sum, { at }) => sum + at.length, 0);
    const what = wanted.run === "pair" ? "prompts that both runs have" : "groups";
    this.count.textContent = `${entries.length.toLocaleString("en")} ${what}, ${kept.toLocaleString("en")} of ${all.toLocaleString("en")} completions`;
    this.list.replaceChildren(...entries.slice(0, this.shown).map((entry) => this.card(entry)));
    this.more.hidden = entries.length <= this.shown;
  }

  /** For each prompt id in both runs its first hit (by the order) of each. */
  pairs(hits) {
    const byPrompt = new Map();
    for (const hit of hits) {
      const id = this.samples.prompts[hit.group.p].id, entry = byPrompt.get(id) ?? [null, null];
      entry[hit.group.r] ??= hit;
      byPrompt.set(id, entry);
    }
    return [...byPrompt.values()].filter(([a, b]) => a && b);
  }

  card(entry) {
    const prompt = this.samples.prompts[entry[0].group.p];
    const sides = entry.map((hit) => this.side(hit, entry.length > 1));
    const title = el("header", {}, el("strong", {}, prompt.id), ...(entry.length > 1 ? [] : [this.summary(entry[0])]));
    const right = entry.length > 1 ? el("div", { class: "pair" }, ...sides) : sides[0];
    return el("article", { class: "group", tabindex: "-1", "aria-label": `prompt ${prompt.id}` }, title, el("div", { class: "columns" }, this.prompt(prompt), right));
  }

  summary({ group, at }) {
    const rewards = group.c.map((completion) => completion[1]).filter((reward) => reward !== null);
    const mean = rewards.reduce((sum, reward) => sum + reward, 0) / (rewards.length || 1);
    const equal = rewards.length > 1 && rewards.every((reward) => reward === rewards[0]) ? ", all equal" : "";
    const shown = at.length < group.c.length ? ` · ${at.length} of ${group.c.length} shown` : "";
    const label = this.runs.length > 1 ? `${"AB"[group.r]} · ` : "";
    return el("span", { class: "muted" }, `${label}step ${group.s} · mean reward ${readable(mean)}${equal}${shown}`);
  }

  side(hit, paired) {
    const head = paired ? [el("p", {}, el("span", { class: `label run-${"AB"[hit.group.r]}` }, "AB"[hit.group.r]), " ", this.summary(hit))] : [];
    return el("div", {}, ...head, ...hit.at.map((i) => this.completion(hit.group.c[i], i)));
  }

  prompt(prompt) {
    const parts = [];
    for (const [role, content] of prompt.m) {
      parts.push(el("div", { class: "role" }, role));
      const pictures = content.filter((part) => typeof part === "number");
      if (pictures.length) parts.push(el("div", { class: "pictures" }, ...pictures.map((index) => this.picture(prompt.i[index], index))));
      const text = content.filter((part) => typeof part === "string").join("\n");
      parts.push(el("div", { class: "message" }, ...this.marked(text)));
    }
    parts.push(el("div", { class: "answer" }, "gold answer: ", el("b", {}, ...this.marked(prompt.a))));
    if (prompt.x) parts.push(el("details", {}, el("summary", {}, "as the engine saw it"), el("div", { class: "text", tabindex: "0" }, prompt.x)));
    return el("div", { class: "prompt" }, ...parts);
  }

  picture(image, index) {
    if (!image || image.u === undefined) return el("div", { class: "absent" }, image?.e || "picture not recorded");
    const source = this.samples.pictures[image.u], name = image.n.split("/").at(-1);
    const size = image.w ? ` · ${image.w}×${image.h}, ${image.t} tokens` : "";
    if (image.ms) return this.film(image, index, source, name, size);
    const img = el("img", { src: source, alt: `picture ${index + 1}: ${name}`, loading: "lazy", decoding: "async", class: image.w && image.w < 128 && "tiny" });
    return el("button", { type: "button", class: "picture", title: name + size, onclick: () => this.enlarge(source, image.n + size) }, img);
  }

  /** A clip: some of its frames beside each other, their times below. */
  film(image, index, source, name, size) {
    const count = image.ms.length, times = image.ms.map((ms) => `${(ms / 1000).toFixed(2)} s`);
    const shown = `${count < image.c ? `${count} of ` : ""}${image.c} frames`;
    const img = el("img", { src: source, alt: `clip ${index + 1}: ${name}, frames at ${times.join(", ")}`, loading: "lazy", decoding: "async" });
    const button = el("button", { type: "button", class: "picture", title: name + size, onclick: () => this.enlarge(source, `${image.n}${size} · ${shown} at ${times.join(", ")}`) }, img);
    const line = el("div", { class: "times", "aria-hidden": "true" }, ...times.map((time) => el("span", {}, time.slice(0, -2))));
    return el("figure", { class: "film", style: `max-width: ${count * 98}px` }, button, line, el("figcaption", { class: "muted" }, `${shown}, times in seconds${size}`));
  }

  enlarge(source, caption) {
    const dialog = document.getElementById("viewer");
    dialog.replaceChildren(el("img", { src: source, alt: caption }), el("p", { class: "muted" }, caption), el("button", { type: "button", onclick: () => dialog.close() }, "Close"));
    dialog.showModal();
  }

  completion([text, reward, advantage, reason, tokens, mismatch, parts, error], i) {
    const facts = [`#${i + 1}`, this.chip(reward), advantage === null ? "not trained on" : `advantage ${advantage > 0 ? "+" : ""}${readable(advantage)}`,
      reason, tokens === null || tokens === undefined ? null : `${tokens} tokens`, mismatch === null ? null : `mismatch ${readable(mismatch)}`,
      ...Object.entries(parts).map(([name, value]) => `${name} ${value === null ? "–" : readable(value)}`)];
    const line = facts.filter((fact) => fact !== null && fact !== "").map((fact) => typeof fact === "string" ? el("span", {}, fact) : fact);
    const failure = error ? el("div", { class: "failure" }, `no reward: ${error}`) : null;
    return el("div", { class: "completion" }, el("div", { class: "facts-line" }, ...line), failure, el("div", { class: "text", tabindex: text.length > 600 ? "0" : null }, ...this.marked(text)));
  }

  /** The reward on red to green; the number says it without colour, too. */
  chip(reward) {
    const share = reward === null ? 0 : this.high > this.low ? (reward - this.low) / (this.high - this.low) : reward > 0 ? 1 : 0;
    return el("span", { class: "chip", style: `background: hsl(${Math.round(share * 140)} 62% 31%)` }, reward === null ? "no reward" : readable(reward));
  }

  /** `text` with what is searched for marked. */
  marked(text) {
    if (!this.mark) return [text];
    const found = [], lower = text.toLowerCase();
    if (lower.length !== text.length) return [text]; // positions would differ
    let at = 0, hit;
    while ((hit = lower.indexOf(this.mark, at)) >= 0) {
      found.push(text.slice(at, hit), el("mark", {}, text.slice(hit, hit + this.mark.length)));
      at = hit + this.mark.length;
    }
    return [...found, text.slice(at)];
  }
}
