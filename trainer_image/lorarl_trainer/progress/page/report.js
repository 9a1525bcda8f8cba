// The report of one run. Opened as a file, it shows the data in the page; served by `lorarl open`, it follows the run.

let latest = JSON.parse(byId("data").textContent);
let weight = 0;

function render(run) {
  latest = run;
  renderOverview(run);
  byId("curves").hidden = !run.steps.length && !run.evaluations.length;
  renderCurves(run, weight, pickStep);
  renderSamples(run);
}

setUpSamples();
byId("smoothing").addEventListener("input", (event) => {
  weight = Number(event.target.value);
  byId("smoothing-text").textContent = weight ? weight.toFixed(2) : "off";
  renderCurves(latest, weight, pickStep);
});
render(latest);
if (document.documentElement.dataset.live) follow("data.json", render, (run) => run.state === "running");
