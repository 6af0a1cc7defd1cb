/** Light and dark, and the colours of plots in either (after Okabe and Ito). */

const dark = matchMedia("(prefers-color-scheme: dark)");

/** @param {() => void} changed */
export function themes(changed) {
  const wanted = localStorage.getItem("theme");
  const set = (/** @type {boolean} */ on) => {
    document.documentElement.dataset.theme = on ? "dark" : "light";
    changed();
  };
  set(wanted ? wanted === "dark" : dark.matches);
  dark.addEventListener("change", () => { if (!localStorage.getItem("theme")) set(dark.matches); });
  return () => {
    const on = document.documentElement.dataset.theme !== "dark";
    localStorage.setItem("theme", on ? "dark" : "light");
    set(on);
  };
}

export const isDark = () => document.documentElement.dataset.theme === "dark";

/** Colours of this moment. */
export function colours() {
  const night = isDark();
  return {
    ink: night ? "#e7ebf1" : "#1b2430",
    soft: night ? "#9aa6b5" : "#5b6675",
    grid: night ? "#2a323e" : "#e7eaf0",
    a: night ? "#56b4e9" : "#0072b2",
    b: night ? "#ff8a4d" : "#d55e00",
    edge: night ? "#f5b83d" : "#b86e00",
    minimum: night ? "#2fc79d" : "#00795a",
    limit: night ? "#d79bc0" : "#a5588a",
    card: night ? "#1a2029" : "#ffffff",
  };
}

/** How runs end: apart in hue and in lightness. */
export const STATE_COLOURS = {
  settled: "#0072b2", learning: "#8ecbee", oscillating: "#e69f00", stalled: "#b9bec6", diverged: "#703517",
};

/** A scale that grows in lightness, for layers and ratios. */
export const STEPS = ["#2c2a6b", "#3a5a94", "#2d87a3", "#3db08f", "#93cf6c", "#f3dd55"];
