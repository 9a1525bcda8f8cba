// Which columns of metrics.jsonl become which chart. A column that no chart names gets its own, under "More".

// Columns are [name, label, how]; evals selects columns of evaluations, without eval_; percent shows shares as percent.
const CURVES = [
  ["Does it learn?", [
    { title: "Reward", unit: "mean per completion", columns: [["reward_mean", "training"]], evals: /^score$/, except: "dpo" },
    { title: "Pairs in the right order", unit: "% of pairs", columns: [["preference/accuracy", "training"]], evals: /^score$/, only: "dpo", percent: true },
    { title: "Loss", unit: "nats per pair", columns: [["loss", "training"]], only: "dpo" },
    { title: "Margin of the pairs", unit: "implicit reward, chosen less rejected", columns: [["preference/margin", "training"]], evals: /(^|\/)margin$/ },
    { title: "Implicit rewards", unit: "mean per answer", columns: [["preference/chosen", "chosen"], ["preference/rejected", "rejected"]] },
    { title: "Loss", unit: "nats per token", columns: [["loss", "training"]], evals: /(^|\/)loss$/, only: "sft" },
    { title: "Divergence from the teacher", unit: "nats per token", columns: [["teacher/kl", "KL of the policy to the teacher"]] },
    { title: "Tokens that the teacher scored", unit: "% of tokens", columns: [["teacher/scored_share", "scored"]], percent: true },
    { title: "Parts of the reward", unit: "mean per completion", prefix: "reward/" },
    { title: "Further held-out scores", unit: "mean per completion", evals: /\/score$/ },
    { title: "Solved in k tries", unit: "share of held-out rows, pass@k", evals: /(^|\/)pass_at_\d+$/ },
    { title: "Parts of the held-out reward", unit: "mean per completion", evals: /(^|\/)reward\// },
    { title: "Groups with signal", unit: "% of the step's groups", columns: [["signal_share", "groups whose rewards differ"]], percent: true },
    { title: "Spread of the rewards", unit: "standard deviation", columns: [["reward_std", "all completions"]], fromZero: true },
  ]],
  ["What does it write?", [
    { title: "Length of completions", unit: "tokens", fromZero: true, columns: [["response_tokens_mean", "mean"],
      ["response_tokens_high_reward", "above mean reward"], ["response_tokens_low_reward", "the others", "dash"]] },
    { title: "Completions that were cut off", unit: "% of completions", columns: [["truncated_share", "cut off"]], percent: true },
    { title: "Entropy", unit: "nats per token", columns: [["entropy", "of the policy"]], fromZero: true },
    { title: "Rewards that failed", unit: "completions per step", columns: [["reward_failures", "without a reward"]], fromZero: true, unlessZero: true },
  ]],
  ["Are the updates healthy?", [
    { title: "Gradient norm", unit: "before clipping", columns: [["grad_norm", "of the adapter"]], fromZero: true },
    { title: "Clipped tokens", unit: "% of tokens", columns: [["clipped_share", "gradient was clipped"]], percent: true },
    { title: "KL to the base model", unit: "nats per token", columns: [["kl", "policy against base"]], log: true },
    { title: "Policy loss", unit: "about 0 for GRPO, whatever it learns", columns: [["loss", "loss"]], except: ["sft", "dpo"] },
    { title: "What the critic explains", unit: "% of the returns' variance; 0 says nothing of them", columns: [["critic/explained_variance", "explained"]], percent: true },
    { title: "Value loss", unit: "squared error over 2", columns: [["critic/loss", "of the critic"]], fromZero: true },
    { title: "Values and returns", unit: "mean per token", columns: [["critic/value", "expected"], ["critic/return", "found", "dash"]] },
    { title: "Clipped values", unit: "% of tokens", columns: [["critic/clipped_share", "gradient was clipped"]], percent: true, unlessZero: true },
    { title: "Gradient norm of the critic", unit: "before clipping", columns: [["critic/grad_norm", "of adapter and head"]], fromZero: true },
    { title: "Learning rate", unit: "of AdamW", columns: [["learning_rate", "learning rate"]], fromZero: true },
    { title: "Updates withheld", unit: "per step", columns: [["withheld_updates", "not finite"]], fromZero: true },
  ]],
  ["Do engine and trainer agree?", [
    { title: "Difference of log-probabilities", unit: "nats, mean of absolute values", columns: [["mean_abs_logprob_diff", "vLLM against trainer"], ["logprob_noise", "normal for this model", "dash"]], log: true },
    { title: "KL of engine to trainer", unit: "nats per token", columns: [["rollout_kl", "k3 estimate"]], log: true },
    { title: "Experts that the trainer would choose otherwise", unit: "% of tokens, over all layers", columns: [["routing_changed", "than the rollout"]], percent: true },
  ]],
  ["How fast is it?", [
    { title: "Age of the samples", unit: "adapter versions behind the one that trains", columns: [["staleness/mean", "mean"], ["staleness/max", "oldest", "dash"]], fromZero: true },
    { title: "Generation beside training", unit: "seconds per step", columns: [["staleness/hidden_seconds", "while earlier steps trained"]], fromZero: true },
    { title: "Speed", unit: "tokens per second", columns: [["tokens_per_second", "prompts and completions"]], fromZero: true },
    { title: "Where a step's time goes", unit: "seconds per step", phases: true },
    { title: "Sequences in an engine", unit: "mean over its steps", fromZero: true,
      columns: [["engine/running", "generated at a time"], ["engine/waiting", "waiting for room", "dash"]] },
    { title: "KV cache in use", unit: "% of its blocks, at most", columns: [["engine/kv_cache", "of an engine"]], percent: true },
    { title: "Preempted sequences", unit: "per step", columns: [["engine/preemptions", "gave their room up"]], fromZero: true, unlessZero: true },
    { title: "GPU memory", unit: "GB", prefix: "gpu_memory/", fromZero: true },
  ]],
];
const SHOWN = new Set(CURVES.flatMap(([, list]) => list).flatMap((c) => (c.columns ?? []).map(([name]) => name)).concat(["tokens", "step_seconds"]));
const PREFIXES = CURVES.flatMap(([, list]) => list).flatMap((curve) => curve.prefix ?? []);

function trainingSeries(run, name, label, scale) {
  const y = run.columns[name];
  return y?.some((v) => v != null) ? { label, x: run.steps, y: scale === 1 ? y : y.map((v) => v == null ? v : v * scale) } : null;
}

function evalSeries(run, name, label, scale) {
  const rows = run.evaluations.filter((row) => row[name] != null);
  if (!rows.length) return null;
  const of = (key) => rows.map((row) => (row[key] == null ? null : row[key] * scale));
  return { label, x: rows.map((row) => row.step), y: of(name), low: of(`${name}_low`), high: of(`${name}_high`), points: true };
}

function evalNames(runs) { return [...new Set(runs.flatMap((run) => run.evaluations).flatMap((row) => Object.keys(row)))]; }

// hard/pass_at_4 becomes hard: pass@4, and the columns of data.eval itself "held out".
function evalLabel(name) {
  const label = name.replace(/pass_at_(\d+)/, "pass@$1").replace(/(^|\/)(score|loss)$/, "").replace(/(^|\/)reward\//, "$1");
  return label.replace("/", ": ") || "held out";
}

// In the order of their names, so that a part of the reward has the same colour in training and held out.
function seriesOf(curve, run) {
  const isOf = (types) => [types].flat().includes(run.summary.algorithm);
  if (curve.only ? !isOf(curve.only) : isOf(curve.except)) return [];
  if (curve.phases) return Object.entries(run.phases).map(([name, y]) => ({ label: name.replaceAll("_", "/"), x: run.steps, y, stack: true }));
  const scale = curve.percent ? 100 : 1;
  const { prefix } = curve, parts = prefix ? Object.keys(run.columns).filter((name) => name.startsWith(prefix)).sort() : [];
  const training = [...(curve.columns ?? []), ...parts.map((name) => [name, name.slice(prefix.length)])];
  return [
    ...training.map(([name, label, how]) => {
      const made = trainingSeries(run, name, label, scale);
      return made && { ...made, dash: how === "dash" };
    }),
    ...evalNames([run]).filter((name) => curve.evals?.test(name)).sort().map((name) => evalSeries(run, name, evalLabel(name), scale)),
  ].filter(Boolean);
}

// All groups of curves that have data, including those of columns that nobody named here.
function curvesOf(runs) {
  const rest = new Set(runs.flatMap((run) => Object.keys(run.columns)).filter((n) => !SHOWN.has(n) && !PREFIXES.some((p) => n.startsWith(p))));
  const more = [...rest].map((name) => ({ title: name.replaceAll("_", " "), unit: "as in metrics.jsonl", columns: [[name, name]] }));
  const known = /(^|\/)(step|score|loss|margin|rows|seconds|pass_at_\d+|reward\/.*)$|_(low|high)$/;
  const moreEvals = evalNames(runs).filter((n) => !known.test(n)).map((name) => (
    { title: `Held out: ${name.replaceAll("_", " ")}`, unit: "as in metrics.jsonl", evals: { test: (other) => other === name } }));
  return [...CURVES, ["More evaluations", moreEvals], ["More metrics", more]];
}

// Whether a curve says something: that of failures does not while there are none.
function isShown(curve, series) { return series.length && !(curve.unlessZero && series.every((s) => s.y.every((value) => !value))); }

function optionsOf(curve, series, marks, span) {
  const most = curve.percent ? 100 : undefined;
  const wide = curve.phases || series.length > 4;
  return { title: curve.title, unit: curve.unit, fromZero: curve.fromZero || curve.percent || curve.phases, most, log: curve.log, stack: curve.phases, wide, marks, span };
}

// Resumes, and evaluations where they are not points of the chart itself.
function marksOf(run) {
  const resumes = run.summary.starts.filter((s) => s.resumed_from_step != null).map((s) => ({ step: s.resumed_from_step, kind: "resume" }));
  return [...resumes, ...run.evaluations.map((row) => ({ step: row.step, kind: "evaluation" }))];
}

// The first and the last step of all runs, as an axis: one step, or two different ones.
function spanOf(runs) {
  const steps = runs.flatMap((run) => [...run.steps, ...run.evaluations.map((row) => row.step)]);
  const [low, high] = steps.reduce(([a, b], s) => [Math.min(a, s), Math.max(b, s)], [Infinity, -Infinity]);
  return low < high ? [low, high] : steps.slice(0, 1);
}

function renderCurves(run, weight, onPick) {
  const marks = marksOf(run), span = spanOf([run]);
  const groups = curvesOf([run]).map(([title, list]) => [title, list.map((curve) => {
    const series = seriesOf(curve, run).map((s, i) => ({ ...s, colour: colourOf(i) }));
    if (!isShown(curve, series)) return null;
    return chartCard(curve.title, optionsOf(curve, series, marks, span), series, weight, onPick);
  }).filter(Boolean)]).filter(([, cards]) => cards.length);
  showGroups(groups);
}

// Replace the cards only if they changed: a chart that is moved in the page would lose the pointer.
function showGroups(groups) {
  const holder = byId("charts"), cards = groups.flatMap(([, list]) => list);
  const there = [...holder.querySelectorAll("figure.chart")];
  if (there.length === cards.length && there.every((card, i) => card === cards[i])) return;
  holder.replaceChildren(...groups.map(([title, list]) => el("section", { class: "charts" }, el("h3", { class: "group" }, title), list)));
}
