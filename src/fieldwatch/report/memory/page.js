// Shows the numbers of the snapshot under the pointer. The page says everything without it.
for (const section of document.querySelectorAll("section")) {
  const data = JSON.parse(section.querySelector("script.data").textContent);
  const steps = data.steps;
  for (const plot of section.querySelectorAll(".plot")) {
    const hair = plot.querySelector(".hair");
    const label = hair.appendChild(document.createElement("span"));
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      const wanted = steps[0] + share * (steps[steps.length - 1] - steps[0]);
      let row = 0;
      for (let i = 1; i < steps.length; i++) {
        if (Math.abs(steps[i] - wanted) < Math.abs(steps[row] - wanted)) row = i;
      }
      const span = steps[steps.length - 1] - steps[0] || 1;
      const lines = ["iteration " + steps[row]];
      for (const group of [data.totals, data.parts]) {
        for (const [name, values] of Object.entries(group)) {
          const isShare = group === data.totals && name === "fragmentation";
          if (values[row] !== null) lines.push(name + "  " + (isShare ? percent(values[row] / 100) : mebibytes(values[row], 1, "MiB")));
        }
      }
      label.textContent = lines.join("\n");
      hair.style.left = (100 * (steps[row] - steps[0])) / span + "%";
      hair.style.display = "block";
      hair.classList.toggle("left", share > 0.6);
    });
    plot.addEventListener("pointerleave", () => { hair.style.display = "none"; });
  }
}
