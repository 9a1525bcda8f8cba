// Small helpers: elements, numbers, times. Text always becomes a text node, so no data is read as HTML.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

function byId(id) { return document.getElementById(id); }

function fill(id, ...children) { byId(id).replaceChildren(...children.flat(Infinity).filter(Boolean)); }

function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

// Three or four significant digits, as people write them: 0.0012, 3.142, 12,280, 1.8e-7.
function number(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-4) return value.toExponential(1);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(size < 1 ? 3 : 4)));
}

function fixed(value, digits = 3) { return value == null ? "–" : value.toFixed(digits); }

function signed(value, digits = 2) {
  if (value == null) return "–";
  return (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
}

function count(n, noun) { return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`; }

function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const whole = Math.round(seconds), pad = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  if (whole < 60) return `${whole} s`;
  return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)} h` : `${minutes}:${pad(whole % 60)} min`;
}

function date(text) {
  const time = new Date(text);
  if (!text || Number.isNaN(time.getTime())) return "–";
  return time.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

function median(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}

function copyButton(text, what) {
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch { // the page may not be allowed to use the clipboard
      getSelection().selectAllChildren(button.parentElement.querySelector("code"));
      button.textContent = "Ctrl-C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return button;
}
