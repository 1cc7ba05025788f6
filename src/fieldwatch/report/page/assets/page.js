// Read the embedded account and draw it.

const root = document.getElementById("report");
fieldwatch.draw(root, JSON.parse(document.getElementById("account").textContent));
document.body.dataset.state = "drawn";
if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
