// A chart in its card: title, unit, and a legend with the values under the pointer, or else the latest ones.

const charts = new Map();

// Make or update the chart with this key; return its card. onPick gets the step that was clicked.
function chartCard(key, options, series, weight, onPick) {
  const lines = options.stack ? stacked(series) : linesOf(series, weight);
  const content = { series, lines, options, data: aligned(lines, options.span) };
  const shape = JSON.stringify([lines.map((l) => [l.label, l.faint]), options.log && spansDecades(lines)]);
  let chart = charts.get(key);
  if (chart?.shape === shape) {
    Object.assign(chart, content);
    chart.plot?.setData(chart.data, !chart.zoomed);
    if (chart.zoomed) chart.plot.redraw();
    chart.show(chart.plot?.cursor.idx);
    return chart.card;
  }
  chart?.plot?.destroy();
  chart = { ...content, shape, values: series.map(() => el("b", {}, "–")), at: el("span", { class: "at" }) };
  chart.show = (index) => showValues(chart, index);
  chart.holder = el("div", { class: "plot", tabindex: "0", role: "img" });
  chart.card = el("figure", { class: options.wide ? "card chart wide" : "card chart" },
    el("figcaption", {}, el("h3", {}, options.title), el("span", { class: "unit" }, options.unit)),
    el("div", { class: "legend" }, series.map((s, i) => el("span", {}, swatch(s), `${s.label} `, chart.values[i])), chart.at),
    chart.holder);
  chart.holder.addEventListener("keydown", (event) => moveCursor(chart, event, onPick));
  chart.holder.addEventListener("blur", () => chart.plot?.setCursor({ left: -10, top: -10 }));
  new ResizeObserver(() => {
    const width = chart.holder.clientWidth;
    if (chart.plot) chart.plot.setSize({ width, height: CHART_HEIGHT });
    else if (width) build(chart, width, onPick);
  }).observe(chart.holder);
  chart.show(null);
  charts.set(key, chart);
  return chart.card;
}

// The lines over one axis of steps. All charts of a page span the same steps, so that they can be compared by eye.
function aligned(lines, span) {
  return uPlot.join([...lines.map((line) => [line.x, line.y]), [span, span.map(() => null)]]).slice(0, -1);
}

function build(chart, width, onPick) {
  chart.plot = new uPlot(uplotOptions(chart, width), chart.data, chart.holder);
  chart.plot.over.addEventListener("dblclick", () => { chart.zoomed = false; });
  chart.plot.over.addEventListener("click", () => {
    const { idx } = chart.plot.cursor;
    if (onPick && idx != null) onPick(chart.data[0][idx]);
  });
}

function swatch(series) {
  const kind = series.points ? "dot" : series.stack ? "block" : series.dash ? "dashed" : "line";
  return el("i", { class: `swatch ${kind}`, style: `--c: var(${series.colour})` });
}

function stacked(series) {
  const lines = [];
  for (const s of series) {
    const below = lines.at(-1)?.y;
    lines.push({ ...s, stack: true, y: s.y.map((value, i) => (below ? below[i] : 0) + (value ?? 0)) });
  }
  return lines.reverse(); // the highest is drawn first
}

function showValues(chart, index) {
  const step = index == null ? null : chart.data[0][index];
  const texts = chart.series.map((s) => {
    const at = step == null ? s.y.findLastIndex((value) => value != null) : lastUpTo(s.x, step);
    const bar = s.low?.[at] == null ? "" : ` (${number(s.low[at])} to ${number(s.high[at])})`;
    return at < 0 ? "–" : number(s.y[at]) + bar;
  });
  texts.forEach((text, i) => { chart.values[i].textContent = text; });
  chart.at.textContent = step == null ? "" : `step ${step.toLocaleString("en")}`;
  const spoken = chart.series.map((s, i) => `${s.label} ${texts[i]}`).join(", ");
  chart.holder.setAttribute("aria-label", `${chart.options.title}, ${chart.options.unit}: ${spoken}`);
}

function lastUpTo(xs, step) {
  let found = -1;
  for (let i = 0; i < xs.length && xs[i] <= step; i++) found = i;
  return found;
}

function moveCursor(chart, event, onPick) {
  const { plot, data } = chart;
  if (!plot) return;
  const last = data[0].length - 1, now = plot.cursor.idx ?? last;
  if (event.key === "Enter" && onPick) onPick(data[0][now]);
  const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  plot.setCursor({ left: plot.valToPos(data[0][Math.max(0, Math.min(last, to))], "x"), top: 10 });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const { plot } of charts.values()) plot?.redraw();
});
