// Texts of models and tools as they can be shown: nothing in them hides, reorders or breaks a line.

// Control characters, marks of direction, and characters without a width.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Return a text whose hidden characters are written out: ␀ for NUL, ⟨202E⟩ for a mark of direction. */
export function plain(text) {
  return String(text ?? "").replace(HIDDEN, (character) => {
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** Return a text as a sentence: its first letter large, a full stop at its end. */
export function sentence(text) {
  const words = plain(text).trim();
  const end = /[.!?…:]$/.test(words) || !words ? "" : ".";
  return words.charAt(0).toUpperCase() + words.slice(1) + end;
}

/** Return the beginning of a text on one line, of at most `most` characters; line ends are ⏎. */
export function beginning(text, most) {
  const line = plain(String(text ?? "").slice(0, most * 4)).trim().replace(/\s*\n\s*/g, " ⏎ ").replace(/\s+/g, " ");
  const characters = [...line];
  return characters.length <= most ? line : `${characters.slice(0, most - 1).join("")}…`;
}

/** Return JSON as indented lines, keys in their order, strings unquoted where that is clear. */
export function asYaml(value, indent = 0) {
  const pad = "  ".repeat(indent);
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    if (value.every((item) => item === null || typeof item !== "object")) return `[${value.map(scalar).join(", ")}]`;
    return value.map((item) => `\n${pad}- ${asYaml(item, indent + 1).trimStart()}`).join("");
  }
  if (value !== null && typeof value === "object") {
    const lines = Object.entries(value).map(([key, item]) => {
      const inner = asYaml(item, indent + 1);
      return `\n${pad}${plain(key)}:${inner.startsWith("\n") ? "" : " "}${inner}`;
    });
    return lines.length ? lines.join("") : "{}";
  }
  return scalar(value);
}

function scalar(value) {
  if (typeof value !== "string") return String(value);
  return /^[\w./@+-][\w ./@+-]*$/.test(value) && !/^(true|false|null|[\d.+-]+)$/.test(value) ? value : plain(JSON.stringify(value));
}
