// The page: its header, its views, and nothing else.

import { connection } from "./connection.js";
import { h } from "./dom.js";
import { route, start, title } from "./router.js";
import { takeToken } from "./session.js";
import { empty } from "./states.js";
import { themeSwitch } from "./theme.js";
import { mountCompare } from "./views/compare.js";
import { mountRun } from "./views/run.js";
import { mountRuns } from "./views/runs.js";
import { mountSystem } from "./views/system.js";
import { mountTree } from "./views/tree.js";
import { mountTrees } from "./views/trees.js";

takeToken();

document.getElementById("top").append(
  h("a", { class: "brand", href: "/runs", "aria-label": "Banyan, runs" }, h("img", { src: "/assets/icon.svg", alt: "", width: 24, height: 24 }), h("span", {}, "Banyan")),
  h("nav", { "aria-label": "Main" }, h("a", { href: "/runs" }, "Runs"), h("a", { href: "/system" }, "System")),
  connection.line,
  themeSwitch(),
);

route(/^\/(runs\/?)?$/, mountRuns);
route(/^\/compare\/?$/, mountCompare);
route(/^\/system\/?$/, mountSystem);
route(/^\/runs\/(?<run>[^/]+)\/?$/, mountRun);
route(/^\/runs\/(?<run>[^/]+)\/trees\/?$/, mountTrees);
route(/^\/trees\/(?<tree>[^/]+)\/?$/, mountTree);
route(/^/, (root) => {
  title("Not found");
  root.append(empty("There is nothing at this address", h("a", { href: "/runs" }, "All runs")));
});
start();
