// Liveness and keys. Every page can be read without this.

const PERIOD = 2000;
const main = document.querySelector("main");
const state = document.querySelector("#live");
let paused = false;
let answered = Date.now();

// The parts of a page that change have an id and `data-part`. Rows of a list do not jump: those that are new are counted.
function renew(page) {
  for (const part of page.querySelectorAll("[data-part][id]")) {
    const own = document.getElementById(part.id);
    if (!own || own.innerHTML === part.innerHTML) continue;
    const unseen = "rows" in part.dataset && "rows" in own.dataset ? newer(own, part) : 0;
    if (unseen && window.scrollY > 0) offer(own, part, unseen);
    else own.replaceWith(document.adoptNode(part));
  }
}

function newer(own, part) {
  const known = new Set([...own.querySelectorAll("tr[data-id]")].map((row) => row.dataset.id));
  return [...part.querySelectorAll("tr[data-id]")].filter((row) => !known.has(row.dataset.id)).length;
}

function offer(own, part, unseen) {
  const button = document.createElement("button");
  button.textContent = `${unseen} newer`;
  button.onclick = () => {
    own.replaceWith(document.adoptNode(part));
    window.scrollTo(0, 0);
    tell();
  };
  state.replaceChildren(button);
}

function tell() {
  const age = Math.round((Date.now() - answered) / 1000);
  if (paused) state.textContent = "paused (p)";
  else state.textContent = age * 1000 > 3 * PERIOD ? `no answer for ${age} s` : "live";
}

async function follow() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, PERIOD));
    if (paused || document.hidden) continue;
    try {
      const response = await fetch(location.href, { redirect: "error" });
      if (response.ok) {
        answered = Date.now();
        tell();
        renew(new DOMParser().parseFromString(await response.text(), "text/html"));
        continue;
      }
    } catch {
      // The daemon is away, or the session is over: the age of the last answer says so.
    }
    tell();
  }
}

if (main && "live" in main.dataset) follow();
