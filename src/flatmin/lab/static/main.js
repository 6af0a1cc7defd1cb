/** The page: what the person does goes to the server, what the server says is drawn. */

import { Acts } from "./acts.js";
import { setTable } from "./controls.js";
import { toast } from "./page.js";
import { ask } from "./socket.js";
import { clone, stateOf } from "./state.js";
import { wire } from "./wiring.js";

/** What the page opens with: the first scene, or the table of the command line. */
function usual(/** @type {any} */ offered) {
  const first = offered.scenes[0], settings = clone(first.settings), { opening } = offered;
  if (opening) {
    settings.problem = opening.problem;
    settings.architecture = { kind: "mlp", depth: 5 };
    settings.initialisation = { name: "pytorch", scale: 1 };
    settings.method = { name: "descent", learning_rate: 0.01, steps: 500 };
    setTable(opening.table);
  }
  const view = { axis: first.axis, colour: "state", tab: first.tab, log: true, distance: false, scene: opening ? undefined : first.name };
  return { a: settings, b: null, view };
}

const offered = await (await ask("/api/start")).json();
const page = new Acts(offered, stateOf(location.hash, usual(offered), toast));
wire(page);
// For those who look into the page from its console, and for its tests.
/** @type {any} */ (window).lab = page;
