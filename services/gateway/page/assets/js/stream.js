// Server-sent events that end with their view, and find back by themselves.

import { get } from "./api.js";
import { connection } from "./connection.js";

const FIRST_WAIT_MS = 1000;
const MOST_WAIT_MS = 10000;
let made = 0;

/**
 * Follow a stream until `signal` is aborted or `over` arrives.
 *
 * `path` returns its address at each opening. `handlers` maps names of events to functions of their document. The stream is closed while the
 * page is hidden: a browser opens only six connections to one host, for all tabs together.
 */
export function follow(path, handlers, signal) {
  const name = `stream-${(made += 1)}`;
  let source = null;
  let wait = FIRST_WAIT_MS;
  let timer = 0;
  let over = false;

  function close() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  function open() {
    if (over || source || signal.aborted || document.hidden) return;
    source = new EventSource(path());
    source.addEventListener("open", () => {
      wait = FIRST_WAIT_MS;
      connection.back(name);
    });
    source.addEventListener("error", retry);
    for (const [event, handler] of Object.entries(handlers)) {
      source.addEventListener(event, (message) => handler(message.data ? JSON.parse(message.data) : null));
    }
    source.addEventListener("over", () => {
      over = true;
      end();
    });
  }

  // The browser's own retry has no growing wait, and gives up on answers that are errors.
  function retry() {
    if (over || signal.aborted) return;
    connection.lost(name);
    // A refusal may be for a session that has ended: an ordinary read begins another one.
    if (source?.readyState === EventSource.CLOSED) get("/api/runs?limit=1", signal).catch(() => {});
    close();
    timer = setTimeout(open, wait);
    wait = Math.min(wait * 2, MOST_WAIT_MS);
  }

  function visible() {
    if (document.hidden) close();
    else open();
  }

  function end() {
    close();
    connection.back(name);
    document.removeEventListener("visibilitychange", visible);
  }

  document.addEventListener("visibilitychange", visible);
  signal.addEventListener("abort", end, { once: true });
  open();
}

/** Call `look` now and every `period` ms until `signal` is aborted; never twice at once. */
export async function poll(look, period, signal) {
  while (!signal.aborted) {
    if (!document.hidden) await look();
    await new Promise((resolve) => {
      const timer = setTimeout(done, period);
      function done() {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        resolve();
      }
      signal.addEventListener("abort", done);
    });
  }
}
