// A page that is served asks for newer data. `render` gets it; `isRunning` says whether more is to come.

function follow(address, render, isRunning) {
  const live = byId("live");
  live.hidden = false;
  let etag = null, running = isRunning(JSON.parse(byId("data").textContent));
  async function ask() {
    try {
      const answer = await fetch(address, { headers: etag ? { "If-None-Match": etag } : {} });
      if (answer.status === 200) {
        etag = answer.headers.get("ETag");
        const data = await answer.json();
        render(data);
        running = isRunning(data);
      }
      const fine = answer.ok || answer.status === 304;
      live.textContent = !fine ? `not renewed: the server answered ${answer.status}` : running ? "live" : "up to date";
      live.className = fine ? "live" : "live lost";
    } catch {
      live.textContent = `${document.documentElement.dataset.live} has ended; this is its last state`;
      live.className = "live lost";
    }
    setTimeout(ask, document.hidden ? 10000 : 2000);
  }
  ask();
}
