// Elements are made here and nowhere else. Text goes in as text nodes, so nothing that a server
// sends can become an element; styles go through the CSSOM, which the content policy allows.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element. Strings and numbers among the children become text; null is left out. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  apply(element, props);
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function apply(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (name === "style") {
      for (const [key, style] of Object.entries(value)) element.style.setProperty(key, style);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (name === "value") {
      element.value = value;
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/** Return an icon: strokes of a 16 px grid, hidden from readers of the screen. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" })) {
    svg.setAttribute(key, value);
  }
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

const ICONS = {
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6M8 1v1M8 14v1M1 8h1M14 8h1M3 3l.8.8M12.2 12.2l.8.8M3 13l.8-.8M12.2 3.8 13 3",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  fit: "M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4",
  expand: "M5 6l3-3 3 3M5 10l3 3 3-3",
  collapse: "M5 3l3 3 3-3M5 13l3-3 3 3",
  split: "M2 3h12v10H2zM8 3v10",
  keys: "M2 4h12v8H2zM4.5 6.5h1M7.5 6.5h1M10.5 6.5h1M5 9.5h6",
  copy: "M6 6h7v7H6zM10 6V3H3v7h3",
  close: "M4 4l8 8M12 4l-8 8",
  right: "M6 3l5 5-5 5",
  fork: "M3 8h3c3 0 2-4 5-4h2M6 8c3 0 2 4 5 4h2",
  cut: "M3 8h7M12 4v8",
  tool: "M10 3a3 3 0 0 0-3 4L3 11l2 2 4-4a3 3 0 0 0 4-3l-2 1-2-2 1-2",
  answer: "M7 4 3 8l4 4M3 8h7a3 3 0 0 1 3 3",
  list: "M6 4h8M6 8h8M6 12h8M2.5 4h.1M2.5 8h.1M2.5 12h.1",
};

/** Return a link; a plain text where the address is neither of this page nor http(s). */
export function link(href, ...children) {
  let url;
  try {
    url = new URL(href, location.origin);
  } catch {
    return h("span", {}, ...children);
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") return h("span", {}, ...children);
  const foreign = url.origin !== location.origin;
  return h("a", { href: url.href, ...(foreign && { rel: "noopener noreferrer", target: "_blank" }) }, ...children);
}

/** Say a sentence to readers of the screen. */
export function say(sentence) {
  document.getElementById("said").textContent = sentence;
}

/** Replace what an element holds; null and false among the children are left out. */
export function put(host, ...children) {
  host.replaceChildren(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
}
