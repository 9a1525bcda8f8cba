// The head of the report, and everything that is not a curve or a sample: facts, how to load, warnings, times.

function renderOverview(run) {
  const { summary, state } = run, steps = run.steps.length ? run.last_step : 0;
  document.title = `${summary.job} · ${state} · lorarl`;
  byId("job").textContent = summary.job;
  byId("state").textContent = STATES[state] ?? state;
  byId("state").className = `state ${state}`;
  byId("lead").textContent = leadOf(summary);
  byId("progress").max = summary.total_steps;
  byId("progress").value = steps;
  byId("progress-text").textContent = progressText(run, steps);
  byId("message").hidden = !summary.message;
  byId("message").textContent = summary.message;
  fill("tiles", tilesOf(run).map(([label, value, more]) =>
    el("div", { class: "card tile" }, el("span", {}, label), el("b", {}, value), el("small", {}, more || " "))));
  byId("warnings").hidden = !summary.warnings.length;
  fill("warning-list", summary.warnings.map((text) => el("li", {}, text)));
  byId("use").hidden = !run.snippets.length;
  fill("snippets", run.snippets.map(([title, code]) => snippet(title, code)));
  fill("facts", factsOf(run).map(([label, value]) => [el("dt", {}, label), el("dd", {}, value)]));
  fill("starts", run.summary.starts.map(startRow));
  byId("manifest-text").textContent = summary.manifest;
  renderTimes(run);
}

const STATES = { running: "running", succeeded: "succeeded", failed: "failed", interrupted: "interrupted", stopped: "no longer running" };

function leadOf(summary) {
  const parts = [`${summary.algorithm} on ${nameOf(summary.base_model)}`];
  if (summary.data) parts.push(`${summary.data.train_rows.toLocaleString("en")} rows of ${nameOf(summary.data.train)}`);
  if (summary.reward) parts.push(`reward ${summary.reward}`);
  return parts.join(" · ");
}

// The last part of a path, which is what tells paths apart.
function nameOf(uri) { return uri.startsWith("hf://") ? uri.slice(5) : uri.replace(/\/+$/, "").split("/").slice(-2).join("/"); }

function progressText(run, steps) {
  const { summary, state } = run, total = summary.total_steps;
  const text = `step ${steps.toLocaleString("en")} of ${total.toLocaleString("en")}`;
  if (state !== "running" || !run.steps.length) return text;
  return `${text} · about ${duration(median(run.columns.step_seconds.slice(-50)) * (total - steps))} left`;
}

function tilesOf(run) {
  const { summary, columns } = run, tiles = [];
  const metric = evalNames([run]).find((name) => /(^|\/)(score|loss)$/.test(name));
  if (metric) {
    const rows = run.evaluations.filter((row) => row[metric] != null), last = rows.at(-1), bar = last[`${metric}_low`];
    const interval = bar == null ? "" : `, 95% interval ${fixed(bar)} to ${fixed(last[`${metric}_high`])}`;
    const value = rows.length > 1 ? `${fixed(rows[0][metric])} → ${fixed(last[metric])}` : fixed(last[metric]);
    const rowCount = last[metric.replace(/(score|loss)$/, "rows")];
    tiles.push([`Held-out ${metric.replace("/", " ")}`, value, `${count(rowCount, "row")}${interval}`]);
  }
  const [name, y] = columns.reward_mean ? ["Reward", columns.reward_mean] : ["Loss", columns.loss];
  if (y) tiles.push([name, `${fixed(y[0])} → ${fixed(y.at(-1))}`, "first → latest step"]);
  if (columns.signal_share) tiles.push(["Groups with signal", `${Math.round(100 * columns.signal_share.at(-1))}%`, "latest step"]);
  if (run.steps.length) {
    tiles.push(["Speed", number(median(columns.tokens_per_second.slice(-50))), "tokens per second"]);
    const whole = summary.total_seconds == null ? "" : `latest start ${duration(summary.total_seconds)}, all included`;
    tiles.push(["Training", duration(run.train_seconds), whole]);
  }
  return tiles;
}

function factsOf(run) {
  const { summary } = run, { adapter, data } = summary, start = summary.starts.at(-1);
  const share = (100 * adapter.trainable_parameters / adapter.total_parameters).toFixed(2);
  const source = (uri, rows) => `${uri} (${count(rows, "row")})`;
  return [
    ["Base model", summary.base_model + (summary.base_revision ? ` @ ${summary.base_revision}` : "")],
    ["Adapter", `${adapter.type}, rank ${adapter.rank}, alpha ${adapter.alpha}`],
    ["Parameters", `${adapter.trainable_parameters.toLocaleString("en")} trainable of ${adapter.total_parameters.toLocaleString("en")} (${share}%)`],
    ["Modules", run.modules.join("\n")],
    ["Training data", data && source(data.train, data.train_rows)],
    ["Held-out data", data?.held_out.map((set) => `${set.name ? `${set.name}: ` : ""}${source(set.uri, set.rows)}`).join("\n")],
    ["Reward", summary.reward],
    ["vLLM against trainer", summary.mean_abs_logprob_diff != null && `log-probabilities differ by ${number(summary.mean_abs_logprob_diff)} nats on average, ${number(summary.worst_mean_abs_logprob_diff)} in the worst step`],
    ["Started", start && date(summary.starts[0].at)],
    ["Ended", summary.finished_at && date(summary.finished_at)],
    ["Machine", start?.host && `${start.host}: ${start.hardware}`],
    ["Versions", start && Object.entries(start.versions).map(([name, version]) => `${name} ${version}`).join(", ")],
    ["Best checkpoint", summary.best && `step ${summary.best.step}, ${summary.best.metric} ${number(summary.best.value)}\n${summary.best.uri}`],
    ["Adapter URI", summary.adapter_uri ?? "no adapter was published"],
    ["Files", run.folder],
  ].filter(([, value]) => value);
}

function startRow(start) {
  const where = start.resumed_from_step == null ? "from the beginning" : `resumed after step ${start.resumed_from_step}`;
  const changes = start.changes?.length ? `; ${start.changes.join("; ")}` : "";
  return el("li", {}, `${date(start.at)}: ${where}${start.host ? `, on ${start.host}` : ""}${changes}`);
}

function snippet(title, code) {
  return el("div", { class: "code" }, el("div", { class: "code-head" }, el("h3", {}, title)), copyButton(code, title), el("pre", { tabindex: "0" }, el("code", {}, code)));
}

function barRow(name, who, seconds, left, width, text) {
  const bar = el("i", { class: "bar", style: `margin-left: ${(100 * left).toFixed(1)}%; width: ${(100 * width).toFixed(1)}%` });
  return el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, who), el("td", { class: "num" }, `${seconds.toFixed(2)} s`), el("td", { class: "num" }, text), el("td", { class: "bars" }, bar));
}

function renderTimes(run) {
  const totals = Object.entries(run.phase_seconds), all = totals.reduce((sum, [, s]) => sum + s, 0);
  byId("phases").hidden = !totals.length;
  fill("phase-rows", totals.map(([name, s]) => barRow(name.replaceAll("_", "/"), "", s, 0, s / all, `${(100 * s / all).toFixed(1)}%`)));
  const startup = run.summary.startup;
  byId("startup").hidden = !startup;
  byId("times").hidden = !totals.length && !startup;
  if (!startup) return;
  const whole = startup.first_update_seconds, token = startup.first_token_seconds;
  byId("startup-text").textContent = `${token == null ? "" : `First token after ${token.toFixed(1)} s, `}first update after ${whole.toFixed(1)} s.`;
  fill("startup-rows", startup.parts.map((part) => {
    const left = Math.min(1, Math.max(0, part.begin / whole));
    return barRow(part.name, part.who, part.seconds, left, Math.min(1 - left, part.seconds / whole), "");
  }));
}
