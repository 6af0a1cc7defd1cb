/** Buttons, fields and keys: which of them does what. */

import { bind, offer } from "./controls.js";
import { $, toast } from "./page.js";
import { stateAddress, stateOf } from "./state.js";
import { copy, copyCode, saveCsv, savePicture } from "./take.js";

/** @typedef {import("./acts.js").Acts} Acts */

/** Buttons, fields, keys and files of a page. @param {Acts} page */
export function wire(page) {
  offer(page.offered);
  $("version").textContent = `flatmin ${page.offered.version}`;
  $("scenes").replaceChildren(...page.offered.scenes.map((/** @type {any} */ scene) => {
    const button = document.createElement("button");
    button.textContent = scene.short || scene.title;
    button.setAttribute("aria-label", scene.title);
    button.dataset.scene = scene.name;
    button.dataset.testid = `scene-${scene.name}`;
    button.title = `${scene.title}. ${scene.text}`;
    button.addEventListener("click", () => page.play(scene));
    return button;
  }));
  bind((edit, done, what) => page.change(edit, done, what));
  /** @param {string} id @param {() => any} work */
  const click = (id, work) => $(id).addEventListener("click", async () => { try { await work(); } catch (error) { toast(/** @type {Error} */ (error).message); } });
  click("run", () => page.begin("play"));
  click("pause", () => page.pauseOrGoOn());
  click("step", () => page.stepOnce());
  click("slower", () => page.faster(-1));
  click("faster", () => page.faster(1));
  click("fork", () => page.fork());
  click("close-b", () => page.closeB());
  click("edit-a", () => { page.edited = "a"; page.redraw(); page.askPanel(); });
  click("edit-b", () => { page.edited = "b"; page.redraw(); page.askPanel(); });
  click("undo", () => page.restored(page.history.undo()));
  click("redo", () => page.restored(page.history.redo()));
  click("share", () => { page.writeAddress(); return copy(location.href.replace(/\?token=[^#]*/, ""), "Address"); });
  click("copy-python", () => copyCode(page.settings, "python"));
  click("copy-command", () => copyCode(page.settings, "command"));
  click("save-csv", () => saveCsv(page.settings));
  click("save-png", () => savePicture("png"));
  click("save-svg", () => savePicture("svg"));
  click("theme", () => page.toggleTheme());
  click("map-stop", () => page.stopMap("Stopped."));
  click("panel-stop", () => page.stopPanel());
  document.addEventListener("click", (event) => { if (/** @type {HTMLElement} */ (event.target).parentElement !== $("take")) $("take").open = false; });
  $("scrub").addEventListener("input", () => {
    if (page.playing) { page.playing = false; page.socket.send({ type: "pause" }); }
    const value = Number($("scrub").value);
    page.head = page.run && value >= page.run.count && page.run.end ? null : value;
    page.redraw();
  });
  for (const [id, key] of [["map-axis", "axis"], ["map-colour", "colour"]]) {
    $(id).addEventListener("change", () => {
      /** @type {any} */ (page.state.view)[key] = $(id).value;
      page.writeAddress();
      if (key === "axis") page.askMap(); else page.mark("map");
    });
  }
  for (const id of ["log", "distance"]) {
    $(id).addEventListener("change", () => { /** @type {any} */ (page.state.view)[id] = $(id).checked; page.writeAddress(); page.redraw(); });
  }
  const tabs = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[role=tab]"))];
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => page.openTab(/** @type {string} */ (tab.dataset.tab)));
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by) { const next = tabs[(i + by + tabs.length) % tabs.length]; next.focus(); next.click(); }
    });
  });
  $("file").addEventListener("change", () => { if ($("file").files[0]) page.upload($("file").files[0]); $("file").value = ""; });
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (/** @type {any} */ event) => {
      if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
      event.preventDefault();
      $("drop").classList.toggle("over", kind === "dragover" || kind === "dragenter");
      if (kind === "drop" && event.dataTransfer.files[0]) page.upload(event.dataTransfer.files[0]);
    });
  }
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) if (/** @type {any} */ (target).data && /** @type {HTMLElement} */ (target).offsetParent) Plotly.Plots.resize(target);
    for (const one of page.curves) one.signature = "";
  });
  for (const plot of document.querySelectorAll(".plot")) resized.observe(plot);
  document.addEventListener("keydown", (event) => key(page, event));
  // Paper is white.
  let theme = "";
  window.addEventListener("beforeprint", () => { theme = document.documentElement.dataset.theme ?? ""; page.paint("light"); });
  window.addEventListener("afterprint", () => page.paint(theme));
  window.addEventListener("hashchange", () => {
    const text = stateAddress(page.state);
    if (location.hash.slice(1) === text) return;
    page.history.state = stateOf(location.hash, page.state, toast);
    page.history.keep();
    page.restored(true);
  });
}

/** @param {Acts} page @param {KeyboardEvent} event */
function key(page, event) {
  const place = /** @type {HTMLElement} */ (event.target);
  if (event.key === "Escape" && $("take").open) { $("take").open = false; $("take").querySelector("summary").focus(); return; }
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !/text|number/.test(/** @type {any} */ (place).type ?? "")) {
    event.preventDefault();
    page.restored(event.shiftKey ? page.history.redo() : page.history.undo());
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA|SUMMARY/.test(place.tagName)) return;
  const work = /** @type {Record<string, () => void>} */ ({
    r: () => page.begin("play"), " ": () => page.pauseOrGoOn(), ".": () => page.stepOnce(),
    "]": () => page.faster(1), "[": () => page.faster(-1), f: () => page.fork(),
  })[event.key];
  if (!work || (event.key === " " && place.tagName === "BUTTON")) return;
  event.preventDefault();
  work();
}
