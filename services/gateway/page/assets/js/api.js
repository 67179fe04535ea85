// The documented HTTP API, and nothing else.

import { keepToken, token } from "./session.js";
import { askToken } from "./dialog.js";
import { connection } from "./connection.js";

const READ_TIMEOUT_MS = 20000;

/** An answer of the API that is an error, as a sentence. */
export class ApiError extends Error {
  constructor(status, reason, message) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

/** Return a document. Raises ApiError; asks for the token where reading needs it. */
export async function get(path, signal) {
  try {
    return await call("GET", path, signal);
  } catch (error) {
    if (error.status !== 401) throw error;
    await openSession(signal);
    return call("GET", path, signal);
  }
}

/** Change something: needs the token, which is asked for once and again if it is refused. */
export async function act(method, path, body) {
  if (!token() && !keep(await askToken("Actions need the token."))) throw cancelled();
  try {
    return await call(method, path, undefined, body);
  } catch (error) {
    if (error.status !== 401) throw error;
    keepToken(null);
    if (!keep(await askToken(`${error.message} Enter the token again.`))) throw cancelled();
    return call(method, path, undefined, body);
  }
}

/** Return whether an error says that its call was left on purpose. */
export function left(error) {
  return error?.name === "AbortError" || error?.reason === "LEFT";
}

function cancelled() {
  return new ApiError(0, "LEFT", "Nothing was changed: the token was not given.");
}

function keep(value) {
  if (value) keepToken(value);
  return value;
}

let asking = null;
let declined = false;

/** Ask for the token again at the next need: someone pressed "Try again". */
export function askAgain() {
  declined = false;
}

// Several reads may be refused at once: one dialog serves all of them.
function openSession(signal) {
  asking ??= (async () => {
    if (!token() && !declined) declined = !keep(await askToken("Reading from this address needs the token."));
    if (!token()) throw new ApiError(401, "PERMISSION_DENIED", "Reading from this address needs the token. It is in the file “secret” of the state folder.");
    try {
      await call("POST", "/api/session", signal);
    } catch (error) {
      if (error.status === 401 || error.status === 403) keepToken(null);
      throw error;
    }
  })().finally(() => {
    asking = null;
  });
  return asking;
}

async function call(method, path, signal, body) {
  const headers = { Accept: "application/json" };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const deadline = AbortSignal.timeout(READ_TIMEOUT_MS);
  const either = signal ? AbortSignal.any([signal, deadline]) : deadline;
  let response;
  try {
    response = await fetch(path, { method, headers, signal: either, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin" });
  } catch (error) {
    if (signal?.aborted) throw new DOMException("left", "AbortError");
    connection.lost("api");
    const why = error.name === "TimeoutError" ? `did not answer within ${READ_TIMEOUT_MS / 1000} seconds` : "cannot be reached";
    throw new ApiError(0, "UNREACHABLE", `The gateway ${why}. Is the run or \`banyan page\` still going?`);
  }
  connection.back("api");
  return document_(response);
}

async function document_(response) {
  let content = null;
  try {
    content = response.status === 204 ? {} : await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && content !== null) return content;
  const said = content?.error;
  throw new ApiError(response.status, said?.reason ?? "UNKNOWN", said?.message ?? `The gateway answered ${response.status} without a reason.`);
}
