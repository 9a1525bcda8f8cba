// Several runs over each other: two tables, and one chart for each metric with one line for each run.

let { runs, settings, results } = JSON.parse(byId("data").textContent);
let weight = 0;

function runTable(id, rows) {
  const heads = runs.map((run, i) => el("th", { scope: "col" }, swatch({ colour: colourOf(i), dash: i >= 8 }), run.name));
  fill(id, el("thead", {}, el("tr", {}, el("td", {}), heads)),
    el("tbody", {}, rows.map(([label, values]) => el("tr", {}, el("th", { scope: "row" }, label), values.map((v) => el("td", {}, v))))));
}

// The series of one chart, by their labels; each of them becomes a chart of its own if there are several.
function overlaid(curve) {
  const labels = new Map();
  runs.forEach((run, i) => {
    for (const series of seriesOf(curve, run)) {
      const title = series.points ? `${curve.title}, ${series.label}` : series.label;
      const list = labels.get(title) ?? labels.set(title, []).get(title);
      list.push({ ...series, label: run.name, colour: colourOf(i), dash: i >= 8 });
    }
  });
  return [...labels].map(([label, series]) => {
    const alone = labels.size === 1 || series[0].points;
    return [alone ? (series[0].points ? label : curve.title) : `${curve.title}: ${label}`, series];
  });
}

function renderComparison() {
  const span = spanOf(runs);
  showGroups(curvesOf(runs).map(([title, list]) => [title, list.filter((curve) => !curve.phases).flatMap((curve) =>
    overlaid(curve).filter(([, series]) => isShown(curve, series)).map(([name, series]) =>
      chartCard(name, { ...optionsOf(curve, series, [], span), title: name, wide: false }, series, weight)))])
    .filter(([, cards]) => cards.length));
}

function render(comparison) {
  ({ runs, settings, results } = comparison);
  byId("names").textContent = runs.map((run) => run.name).join(" · ");
  runTable("results", results);
  runTable("settings", settings);
  byId("settings-section").hidden = !settings.length;
  renderComparison();
}

byId("smoothing").addEventListener("input", (event) => {
  weight = Number(event.target.value);
  byId("smoothing-text").textContent = weight ? weight.toFixed(2) : "off";
  renderComparison();
});
render({ runs, settings, results });
if (document.documentElement.dataset.live) {
  follow(`compare.json${location.search}`, render, (comparison) => comparison.runs.some((run) => run.state === "running"));
}
