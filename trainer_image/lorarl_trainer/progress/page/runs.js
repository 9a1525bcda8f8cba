// The list of runs or jobs: sorts, filters and follows without leaving the page. Each view is a page of the server, whose
// #list takes the place of this one's, so what is chosen and where the focus is has to be kept.

const PAUSE = 250;
const byId = (id) => document.getElementById(id);
const chosen = new Set();
let etag = null, asked = 0, typed = null;

function marks() { return [...document.querySelectorAll("#choose input[name=run]")]; }

function showChosen() {
  for (const mark of marks()) mark.checked = chosen.has(mark.value);
  const button = byId("compare");
  button.textContent = chosen.size ? `Compare ${chosen.size} chosen run${chosen.size > 1 ? "s" : ""}` : "Compare chosen runs";
  button.disabled = chosen.size < 2 || chosen.size > Number(byId("choose").dataset.most);
}

// What an element is in each view: the address of a heading changes when it is sorted by.
function keyOf(node) { return node.closest("thead th")?.className ?? node.id + (node.value || node.getAttribute("href")); }

function replaceList(html) {
  const list = new DOMParser().parseFromString(html, "text/html").getElementById("list");
  const focused = document.activeElement, inside = byId("list").contains(focused);
  const key = inside ? keyOf(focused) : null;
  byId("list").replaceWith(document.adoptNode(list));
  if (key) [...byId("list").querySelectorAll("a, input, button")].find((node) => keyOf(node) === key)?.focus();
  showChosen();
}

async function load(address, newer) {
  const number = ++asked, live = byId("live");
  live.hidden = false;
  try {
    const answer = await fetch(address, { headers: etag && newer ? { "If-None-Match": etag } : {} });
    if (number !== asked) return; // another view was asked for meanwhile
    if (!answer.ok && answer.status !== 304) throw new Error(`the server answered ${answer.status}`);
    if (answer.status === 200) {
      etag = answer.headers.get("ETag");
      replaceList(await answer.text());
    }
    live.textContent = "live";
    live.className = "live";
  } catch (error) {
    live.textContent = error instanceof TypeError ? `${document.documentElement.dataset.live} has ended; this is its last state` : `not renewed: ${error.message}`;
    live.className = "live lost";
  }
}

function go(address) {
  history.pushState(null, "", address);
  load(address, false);
}

function filtered() {
  const given = [...new FormData(byId("filter"))].filter(([, value]) => value);
  const now = new URLSearchParams(location.search);
  for (const name of ["sort", "turned", "place", "folder", "maker"]) {
    const others = given.filter(([other]) => other !== name);
    given.splice(0, given.length, ...others, ...(now.has(name) ? [[name, now.get(name)]] : []));
  }
  return `./?${new URLSearchParams(given)}`;
}

byId("filter").addEventListener("submit", (event) => { event.preventDefault(); go(filtered()); });
byId("filter").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => go(filtered()), PAUSE);
});
document.addEventListener("click", (event) => {
  const link = event.target.closest("#list a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || !link.getAttribute("href").startsWith("?")) return;
  event.preventDefault();
  go(link.getAttribute("href") === "?" ? "./" : link.getAttribute("href"));
});
document.addEventListener("change", (event) => {
  if (event.target.name !== "run") return;
  if (event.target.checked) chosen.add(event.target.value); else chosen.delete(event.target.value);
  showChosen();
});
document.addEventListener("submit", (event) => {
  if (event.target.id !== "choose") return;
  event.preventDefault(); // runs that are chosen on other pages belong to it too
  location.href = `compare?${new URLSearchParams([...chosen].map((id) => ["run", id]))}`;
});
addEventListener("popstate", () => load(location.href, false));

function follow() {
  setTimeout(async () => {
    await load(location.href, true);
    follow();
  }, document.hidden ? 10000 : 2000);
}

for (const mark of marks()) if (mark.checked) chosen.add(mark.value);
byId("filter").querySelector("button").hidden = true; // each input filters
showChosen();
follow();
