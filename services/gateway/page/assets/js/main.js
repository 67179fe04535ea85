// The page: its header, its views, and nothing else.

import { connection } from "./connection.js";
import { h } from "./dom.js";
import { route, start, title } from "./router.js";
import { takeToken } from "./session.js";
import { empty } from "./states.js";
import { themeSwitch } from "./theme.js";

takeToken();

document.getElementById("top").append(
  h("a", { class: "brand", href: "/runs", "aria-label": "Banyan, runs" }, h("img", { src: "/assets/icon.svg", alt: "", width: 24, height: 24 }), h("span", {}, "Banyan")),
  h("nav", { "aria-label": "Main" }, h("a", { href: "/runs" }, "Runs"), h("a", { href: "/system" }, "System")),
  connection.line,
  themeSwitch(),
);

// Each view is fetched when it is opened: the first one waits for no other.
route(/^\/(runs\/?)?$/, () => import("./views/runs.js"));
route(/^\/compare\/?$/, () => import("./views/compare.js"));
route(/^\/system\/?$/, () => import("./views/system.js"));
route(/^\/runs\/(?<run>[^/]+)\/?$/, () => import("./views/run.js"));
route(/^\/runs\/(?<run>[^/]+)\/trees\/?$/, () => import("./views/trees.js"));
route(/^\/trees\/(?<tree>[^/]+)\/?$/, () => import("./views/tree.js"));
route(/^/, async () => ({
  mount(root) {
    title("Not found");
    root.append(empty("There is nothing at this address", h("a", { href: "/runs" }, "All runs")));
  },
}));
start();
