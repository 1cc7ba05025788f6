// Points and cameras in space: dragging turns, the wheel zooms.

const POINTS_HEIGHT = 480;
const NEAREST = 0.15;

class PointsPanel extends CanvasPanel {
  constructor(view, panel) {
    super(view, POINTS_HEIGHT);
    this.panel = panel;
    this.yaw = -0.6;
    this.pitch = 0.45;
    this.distance = 3.2;
    this.from = null;
    this.canvas.setAttribute("aria-label", `${panel.cameras.length} cameras and ${panel.points.length / 3} points`);
    this.canvas.style.touchAction = "none";
    this.canvas.style.cursor = "grab";
    this.listen();
    this.element = this.box;
  }

  listen() {
    this.canvas.addEventListener("pointerdown", (event) => {
      this.from = [event.clientX, event.clientY];
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointerup", () => (this.from = null));
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.from) return;
      this.turn((event.clientX - this.from[0]) * 0.008, (event.clientY - this.from[1]) * 0.008);
      this.from = [event.clientX, event.clientY];
    });
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY * 0.001));
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const turns = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
    const zooms = { "+": 0.9, "=": 0.9, "-": 1.1 };
    if (turns[event.key]) this.turn(...turns[event.key]);
    else if (zooms[event.key]) this.zoom(zooms[event.key]);
    else return;
    event.preventDefault();
  }

  turn(across, down) {
    this.yaw += across;
    this.pitch = Math.max(-1.5, Math.min(1.5, this.pitch + down));
    this.draw();
  }

  zoom(factor) {
    this.distance = Math.max(0.2, Math.min(20, this.distance * factor));
    this.draw();
  }

  /** Return a function from an index into the flat coordinates to [x, y, depth] on the canvas; null behind the viewer. */
  projection(width, height) {
    const [cy, sy, cp, sp] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    const focal = Math.min(width, height);
    return (values, at) => {
      const right = cy * values[at] + sy * values[at + 1];
      const ahead = cy * values[at + 1] - sy * values[at];
      const depth = this.distance + cp * ahead - sp * values[at + 2];
      if (depth < NEAREST) return null;
      const up = sp * ahead + cp * values[at + 2];
      return [width / 2 + (focal * right) / depth, height / 2 - (focal * up) / depth, depth];
    };
  }

  paint() {
    const { context, width, height } = this.context();
    context.clearRect(0, 0, width, height);
    const project = this.projection(width, height);
    const { points, colors, cameras } = this.panel;
    for (let at = 0; at < points.length; at += 3) {
      const place = project(points, at);
      if (!place) continue;
      const size = Math.max(1, 4 / place[2]);
      context.fillStyle = `rgb(${colors[at]},${colors[at + 1]},${colors[at + 2]})`;
      context.fillRect(place[0] - size / 2, place[1] - size / 2, size, size);
    }
    context.strokeStyle = this.color("layer-0");
    context.lineWidth = 1;
    for (const camera of cameras) this.drawCamera(context, project, camera.corners);
  }

  /** Draw a camera as a pyramid: its apex is the camera, its base the picture. */
  drawCamera(context, project, corners) {
    const [tip, ...base] = [0, 3, 6, 9, 12].map((at) => project(corners, at));
    if (!tip || base.includes(null)) return;
    context.beginPath();
    base.forEach((corner, place) => {
      const next = base[(place + 1) % 4];
      context.moveTo(tip[0], tip[1]);
      context.lineTo(corner[0], corner[1]);
      context.lineTo(next[0], next[1]);
    });
    context.stroke();
  }
}

function drawPoints(view, one) {
  return new PointsPanel(view, one).element;
}
