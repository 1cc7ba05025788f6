// The colors of Okabe and Ito, which remain distinct with any color vision, adjusted for a light or a dark background.

const LINES = {
  light: ["#0072b2", "#d55e00", "#009e73", "#b5528c", "#c98500", "#3a9bd6", "#5d5d66", "#8a6d1b"],
  dark: ["#56b4e9", "#e8843c", "#2bb793", "#dd92bd", "#e6b332", "#8fd0f5", "#a9a9b2", "#e9e07a"],
};
const DASHES = [[], [], [], [], [7, 3], [2, 2], [7, 3, 2, 3], [12, 3]];

/** Shape of each kind of event mark, in a box of 10 by 10, and its color. Other kinds are bars. */
const MARKS = {
  finding: { path: "M5 0 10 5 5 10 0 5Z", color: "bad" },
  refusal: { path: "M1 0 5 4 9 0 10 1 6 5 10 9 9 10 5 6 1 10 0 9 4 5 0 1Z", color: "bad" },
  rolled_back: { path: "M9 0V10L1 5Z", color: "bad" },
  died: { path: "M0 0H10V10H0Z", color: "bad" },
  resume: { path: "M1 0V10L9 5Z", color: "good" },
  checkpoint: { path: "M0 1H10L5 10Z", color: "quiet" },
  evaluation: { path: "M5 1A4 4 0 1 1 4.99 1Z", color: "cool" },
  growth: { path: "M5 0 10 9H0Z", color: "good" },
  prune: { path: "M0 1H10L5 10Z", color: "warm" },
  reset: { path: "M5 0A5 5 0 1 1 4.99 0ZM5 3A2 2 0 1 0 5.01 3Z", color: "warm" },
};
const BAR = { path: "M3.5 0H6.5V10H3.5Z", color: "quiet" };

function lineStyle(place, theme) {
  const colors = LINES[theme];
  return { stroke: colors[place % colors.length], dash: DASHES[place % DASHES.length] };
}

/** Return the style of a line over stacked areas: the color of text, which no area has. */
function overStyle(place, ink) {
  return { stroke: place ? ink.quiet : ink.ink, dash: place ? [4, 3] : [] };
}

function markStyle(kind) {
  return Object.hasOwn(MARKS, kind) ? MARKS[kind] : BAR;
}

/** Return the colors of the style sheet, for canvases. */
function inks(root) {
  const style = getComputedStyle(root);
  const names = ["ink", "quiet", "rule", "paper", "band", "good", "bad", "warm", "cool"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim() || "#777"]));
}
