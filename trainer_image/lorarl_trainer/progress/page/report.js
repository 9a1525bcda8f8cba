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

function follow() {
  const live = byId("live");
  live.hidden = false;
  let etag = null;
  async function ask() {
    try {
      const answer = await fetch("data.json", { headers: etag ? { "If-None-Match": etag } : {} });
      if (answer.status === 200) {
        etag = answer.headers.get("ETag");
        render(await answer.json());
      }
      live.textContent = latest.state === "running" ? "live" : "up to date";
      live.className = "live";
    } catch {
      live.textContent = "lorarl open has ended; this is its last state";
      live.className = "live lost";
    }
    setTimeout(ask, document.hidden ? 10000 : 2000);
  }
  ask();
}

setUpSamples();
byId("smoothing").addEventListener("input", (event) => {
  weight = Number(event.target.value);
  byId("smoothing-text").textContent = weight ? weight.toFixed(2) : "off";
  renderCurves(latest, weight, pickStep);
});
render(latest);
if (document.documentElement.dataset.live) follow();
