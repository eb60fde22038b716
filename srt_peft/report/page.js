"use strict";
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  // What the page's theme decides of a picture. Pictures with a second axis have none here that this misses.
  const ink = () => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", "font.color": color("--ink"),
    "xaxis.gridcolor": color("--grid"), "yaxis.gridcolor": color("--grid"), "xaxis.linecolor": color("--rule"),
    "yaxis.linecolor": color("--rule"), "hoverlabel.bgcolor": color("--card"), "hoverlabel.bordercolor": color("--rule"),
    "hoverlabel.font.color": color("--ink"), "font.family": getComputedStyle(document.body).fontFamily, "font.size": 13,
  });
  // A legend of many names takes its lines from the picture: where it has several, the picture grows by them.
  const fit = (plot) => {
    plot.style.height = "";
    const names = plot.querySelector(".legend"), lines = names ? names.getBoundingClientRect().height - 36 : 0;
    if (lines > 0) plot.style.height = `${plot.clientHeight + lines}px`;
    Plotly.Plots.resize(plot);
  };
  let wide = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === wide) return;
    wide = window.innerWidth;
    setTimeout(() => plots.forEach(fit), 200); // after Plotly's own, which sets the legend anew
  });
  const plots = [...document.querySelectorAll(".plot")];
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const drawn = plots.map((plot) => {
    const figure = JSON.parse(document.getElementById(plot.dataset.figure).textContent);
    if (touch) figure.layout.dragmode = false; // a finger scrolls the page
    return Plotly.newPlot(plot, figure.data, figure.layout, { displayModeBar: false, responsive: true })
      .then(() => Plotly.relayout(plot, ink())).then(() => fit(plot));
  });

  const show = () => {
    button.setAttribute("aria-pressed", String(dark()));
    button.textContent = dark() ? "Light page" : "Dark page";
    plots.forEach((plot) => Plotly.relayout(plot, ink()));
  };
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  button.hidden = false;
  Promise.all(drawn).then(show).then(() => { root.dataset.ready = "yes"; });
})();
