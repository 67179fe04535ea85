// The token: taken from `#token=` of the address once, kept in this tab's session alone.

const KEY = "banyan-token";

/** Move a token from the address into the session. */
export function takeToken() {
  const match = /[#&]token=([^&]+)/.exec(location.hash);
  if (!match) return;
  keepToken(decodeURIComponent(match[1]));
  history.replaceState(history.state, "", location.pathname + location.search);
}

/** Return the token, or null. */
export function token() {
  return sessionStorage.getItem(KEY);
}

/** Keep a token; forget it where it is empty. */
export function keepToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}
