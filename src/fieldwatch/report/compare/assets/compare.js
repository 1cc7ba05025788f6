// The page of a comparison: drawn as the account of a run is, with a head of its own.

const root = document.getElementById("report");
const account = JSON.parse(document.getElementById("account").textContent);
fieldwatch.draw(root, account);
root.querySelector(".verdict .level").textContent = "Comparison";
root.querySelector("header .said").replaceChildren(...account.run.said.map((text) => {
  const part = document.createElement("span");
  part.textContent = text;
  return part;
}));
document.body.dataset.state = "drawn";
if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
