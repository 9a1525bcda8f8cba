// The sample browser: whole groups of a step with rewards and advantages; sorted, searched, first against last.

const browser = { run: null, kind: "training", index: 0, step: null, follow: true, versus: false, query: "", sort: "sampled", shown: "" };

const SORTS = {
  sampled: ["in the order of the step", null],
  high: ["highest reward first", (c) => -(c.reward ?? -Infinity)],
  low: ["lowest reward first", (c) => c.reward ?? Infinity],
  advantage: ["largest advantage first", (c) => -Math.abs(c.advantage ?? 0)],
  longest: ["longest first", (c) => -(c.further ?? []).reduce((sum, s) => sum + s.tokens, c.tokens)],
};

function renderSamples(run) {
  browser.run = run;
  const kinds = ["training", "held_out"].filter((kind) => run.samples[kind].length);
  byId("samples").hidden = !kinds.length;
  if (!kinds.length) return;
  if (!kinds.includes(browser.kind)) browser.kind = kinds[0];
  for (const kind of ["training", "held_out"]) byId(`kind-${kind}`).disabled = !kinds.includes(kind);
  byId(`kind-${browser.kind}`).checked = true;
  browser.index = browser.follow ? stepsShown().length - 1 : nearestIndex(browser.step);
  showSamples();
}

function stepsShown() { return browser.run.samples[browser.kind]; }

function setUpSamples() {
  const slider = byId("sample-step");
  slider.addEventListener("input", () => goTo(Number(slider.value)));
  byId("sample-search").addEventListener("input", (event) => { browser.query = event.target.value.trim().toLowerCase(); showSamples(); });
  byId("sample-search").addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); nextMatch(); } });
  byId("sample-next").addEventListener("click", nextMatch);
  byId("sample-sort").append(...Object.entries(SORTS).map(([key, [label]]) => el("option", { value: key }, label)));
  byId("sample-sort").addEventListener("change", (event) => { browser.sort = event.target.value; showSamples(); });
  byId("sample-versus").addEventListener("change", (event) => { browser.versus = event.target.checked; showSamples(); });
  for (const kind of ["training", "held_out"]) {
    byId(`kind-${kind}`).addEventListener("change", () => {
      Object.assign(browser, { kind, follow: true });
      browser.index = stepsShown().length - 1;
      showSamples();
    });
  }
}

function goTo(index) {
  browser.index = index;
  browser.step = stepsShown()[index].step;
  browser.follow = index === stepsShown().length - 1;
  showSamples();
}

// Show the samples nearest to a step of the curves.
function pickStep(step) {
  if (!stepsShown()?.length) return;
  goTo(nearestIndex(step));
  byId("samples").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

function nearestIndex(step) {
  const distances = stepsShown().map((s) => Math.abs(s.step - step));
  return distances.indexOf(Math.min(...distances));
}

function matches(group, completion) {
  const { query } = browser;
  return !query || [completion.text, group.model_prompt, group.answer ?? "", ...(completion.further ?? []).flatMap((s) => [s.model_prompt, s.completion])].some((text) => text.toLowerCase().includes(query));
}

function matchesIn(entry) { return entry.groups.reduce((sum, g) => sum + g.completions.filter((c) => matches(g, c)).length, 0); }

function nextMatch() {
  const steps = stepsShown();
  for (let i = 1; i <= steps.length; i++) {
    const index = (browser.index + i) % steps.length;
    if (matchesIn(steps[index])) return goTo(index);
  }
}

function arranged(entry) {
  const key = SORTS[browser.sort][1];
  const groups = entry.groups.map((group) => {
    const found = group.completions.filter((c) => matches(group, c));
    return { ...group, found: key ? found.toSorted((a, b) => key(a) - key(b)) : found };
  }).filter((group) => group.found.length);
  return key ? groups.toSorted((a, b) => key(a.found[0]) - key(b.found[0])) : groups;
}

function showSamples() {
  const steps = stepsShown(), entry = steps[browser.index], slider = byId("sample-step");
  slider.max = steps.length - 1;
  slider.value = browser.index;
  slider.setAttribute("aria-valuetext", `step ${entry.step}`);
  byId("sample-at").textContent = browser.versus ? `${steps[0].step} and ${steps.at(-1).step}` : `step ${entry.step.toLocaleString("en")}`;
  byId("sample-first").textContent = steps[0].step;
  byId("sample-last").textContent = steps.at(-1).step;
  slider.disabled = browser.versus;
  byId("sample-versus").checked = browser.versus;
  const found = matchesIn(entry), withMatches = browser.query ? steps.filter(matchesIn).length : 0;
  byId("sample-next").disabled = !withMatches;
  byId("sample-count").textContent = browser.query
    ? `${count(found, "completion")} here; ${count(withMatches, "step")} of ${steps.length} with a match`
    : `${count(entry.groups.length, "group")}, ${count(found, "completion")}${browser.run.samples.left_out.includes(browser.kind) ? `; the page has ${steps.length} steps, samples.jsonl all` : ""}`;
  // While a run is followed, what has not changed stays, with the reader's selection and place in it.
  const { run, ...choices } = browser, shown = JSON.stringify([{ ...choices, shown: "" }, browser.versus ? steps : entry]);
  if (shown === browser.shown) return;
  browser.shown = shown;
  const list = browser.versus ? versus(steps[0], steps.at(-1)) : arranged(entry).map((group) => groupCard(group));
  fill("sample-list", list.length ? list : el("p", { class: "empty" }, "No completion of this step matches."));
}

function groupCard(group) {
  const scored = group.completions.map((c) => c.reward).filter((r) => r != null);
  const mean = scored.reduce((sum, r) => sum + r, 0) / scored.length;
  const signal = browser.kind === "training" && new Set(scored).size < 2 ? ", no signal" : "";
  const of = group.completions.length > 1 && scored.length ? ` · ${group.completions.length} completions, mean reward ${fixed(mean)}${signal}` : "";
  return el("article", { class: "card sample" },
    el("header", {}, el("h3", {}, titleOf(group)), el("span", {}, `${group.answer == null ? "no answer in the data" : `answer: ${group.answer}`}${of}`)),
    prompt(group), el("ol", { class: "completions" }, group.found.map(completionRow)));
}

function titleOf(group) { return `${group.name ? `${group.name}: r` : "R"}ow ${group.row ?? "–"}`; }

function prompt(group) {
  return el("pre", { class: "prompt", tabindex: "0", "aria-label": "Prompt as the model saw it" }, marked(group.model_prompt));
}

function said(text) { return el("pre", {}, text === "" ? el("i", { class: "nothing" }, "(empty)") : marked(text)); }

function completionRow(c) {
  const parts = Object.entries(c.components ?? {}).map(([name, value]) => el("span", {}, `${name} ${number(value)}`));
  const direction = c.advantage > 0 ? " up" : c.advantage < 0 ? " down" : "";
  return el("li", {},
    el("div", { class: "score" },
      el("b", { title: "reward" }, c.reward == null ? "–" : number(c.reward)),
      c.advantage != null && el("span", { class: `advantage${direction}`, title: "advantage: how much better than its group" }, signed(c.advantage))),
    el("div", {}, said(c.text), (c.further ?? []).map((s, i) => el("div", {},
      el("h4", {}, `sequence ${i + 2} of the episode`, s.truncated && el("span", { class: "cut" }, " cut off")),
      el("pre", { class: "prompt", tabindex: "0", "aria-label": "Prompt as the model saw it" }, marked(s.model_prompt)), said(s.completion)))),
    el("p", { class: "meta" }, el("span", {}, count(c.tokens, "token")), c.truncated && el("span", { class: "cut" }, "cut off"),
      parts, c.failure && el("span", { class: "cut" }, c.failure)));
}

// Text with the matches of the search marked, and special tokens such as <|im_start|> set back.
function marked(text) {
  const escaped = browser.query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const pattern = new RegExp(`(<\\|[^|<>]*\\|>|</?s>)${escaped ? `|(${escaped})` : ""}`, "gi");
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    nodes.push(text.slice(from, match.index), el(match[1] ? "span" : "mark", match[1] ? { class: "special" } : {}, match[0]));
    from = match.index + match[0].length;
  }
  return [...nodes, text.slice(from)];
}

// The first and the last step beside each other; held-out rows are the same in both, so each is one card.
function versus(first, last) {
  const sides = [first, last].map((entry) => arranged(entry));
  const byRow = new Map(sides[1].map((group) => [titleOf(group), group]));
  if (browser.kind === "held_out") {
    return sides[0].filter((group) => byRow.has(titleOf(group))).map((group) => el("article", { class: "card sample" },
      el("header", {}, el("h3", {}, titleOf(group)), el("span", {}, group.answer == null ? "" : `answer: ${group.answer}`)), prompt(group),
      el("div", { class: "versus" }, [[first, group], [last, byRow.get(titleOf(group))]].map(([entry, side]) =>
        el("div", {}, el("h4", {}, `step ${entry.step}`), el("ol", { class: "completions" }, side.found.map(completionRow)))))));
  }
  return [el("div", { class: "versus" }, [first, last].map((entry, i) =>
    el("div", {}, el("h4", {}, `step ${entry.step}`), sides[i].map((group) => groupCard(group)))))];
}
