// Conveniences: keys, and a line that says that something is under way. Every page works without them.
"use strict";

const typing = (element) => element && ["INPUT", "SELECT", "TEXTAREA"].includes(element.tagName) && element.type !== "checkbox";

// Results: "/" to the query, j and k along the results, Enter to open one.
function move(step) {
  const results = [...document.querySelectorAll(".result")];
  if (!results.length) return;
  const here = results.indexOf(document.activeElement.closest(".result"));
  const next = results[Math.min(Math.max(here + step, 0), results.length - 1)];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

// Annotation: h and l vote; the key of a vote stands on its button.
function vote(key) {
  const button = document.querySelector(`button[data-key="${CSS.escape(key)}"]`);
  if (!button || button.disabled) return false;
  button.click();
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const query = document.getElementById("q");
  if (event.key === "Escape" && typing(document.activeElement)) {
    document.activeElement.blur();
  } else if (typing(document.activeElement)) {
    return;
  } else if (event.key === "/" && query) {
    event.preventDefault();
    query.focus();
    query.select();
  } else if (event.key === "j") {
    move(1);
  } else if (event.key === "k") {
    move(-1);
  } else if (event.key === "Enter" && document.activeElement.matches(".result")) {
    document.activeElement.querySelector("a").click();
  } else if (/^[a-z]$/.test(event.key)) {
    vote(event.key);
  }
});

// A form that was submitted is busy until the next page is there; a second click does nothing.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.busy) {
    event.preventDefault();
    return;
  }
  form.dataset.busy = "yes";
  document.getElementById("main").classList.add("busy");
  const status = form.querySelector("[role=status]");
  if (status) status.textContent = "Searching …";
});

// A page that comes back from the browser's memory is not busy.
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-busy]")) delete form.dataset.busy;
  document.getElementById("main").classList.remove("busy");
  const status = document.getElementById("status");
  if (status) status.textContent = "";
});

// At most three systems side by side.
document.addEventListener("change", (event) => {
  const form = event.target.closest("#search");
  if (!form || event.target.name !== "system") return;
  const boxes = [...form.querySelectorAll("input[name=system]")];
  const full = boxes.filter((box) => box.checked).length >= 3;
  for (const box of boxes) box.disabled = full && !box.checked;
});
