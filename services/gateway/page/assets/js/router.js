// Views by path. A view that is left gets its signal aborted: streams, timers and listeners end.

import { failed, loading } from "./states.js";

const routes = [];
let controller = null;
let shown = null;

/** Add a view: `pattern` has named groups, `load` gets a module with mount(root, params, query, signal). */
export function route(pattern, load) {
  routes.push([pattern, load]);
}

/** Go to an address of this page. */
export function go(href, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", href);
  show();
}

/** Change the query of the address without leaving the view. */
export function setQuery(changes) {
  const query = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(key);
    else query.set(key, value);
  }
  const text = query.toString();
  shown = location.pathname + (text ? `?${text}` : "");
  history.replaceState(history.state, "", shown);
}

/** Set the title of the window. */
export function title(text) {
  document.title = text ? `${text} · Banyan` : "Banyan";
}

/** Begin: show the view of the address, and follow links and the history. */
export function start() {
  addEventListener("popstate", show);
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest?.("a[href]");
    if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const url = new URL(anchor.href);
    if (url.origin !== location.origin || anchor.target || url.pathname.startsWith("/api/") || url.pathname.startsWith("/assets/")) return;
    if (url.hash) return;
    event.preventDefault();
    go(url.pathname + url.search);
  });
  show();
}

function show() {
  const address = location.pathname + location.search;
  if (address === shown) return;
  const first = shown === null;
  shown = address;
  controller?.abort();
  controller = new AbortController();
  const root = document.getElementById("view");
  root.replaceChildren();
  root.className = "";
  for (const anchor of document.querySelectorAll("nav a")) {
    const here = location.pathname.startsWith(anchor.pathname) || (anchor.pathname === "/runs" && !location.pathname.startsWith("/system"));
    if (here) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  if (!first) {
    root.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  for (const [pattern, load] of routes) {
    const match = pattern.exec(location.pathname);
    if (match) {
      const params = Object.fromEntries(Object.entries(match.groups ?? {}).map(([key, value]) => [key, decodeURIComponent(value)]));
      open(load, root, params, controller.signal);
      return;
    }
  }
}

async function open(load, root, params, signal) {
  const query = new URLSearchParams(location.search);
  root.append(loading("the view"));
  let view = null;
  try {
    view = await load();
  } catch (error) {
    console.error(error);
    const words = new Error("This view cannot be fetched. Is the gateway still running?");
    if (!signal.aborted) root.replaceChildren(failed(words, () => location.reload()));
    return;
  }
  if (signal.aborted) return;
  root.replaceChildren();
  view.mount(root, params, query, signal);
}
