// What part of a tree is in view: pan by drag and wheel, zoom by pinch, Ctrl and wheel, or keys.

const LEAST = 0.06;
const MOST = 1.6;

export class Camera {
  /** `host` is dragged and scrolled; `moved` is called after each change. */
  constructor(host, moved, signal) {
    this.x = 24;
    this.y = 24;
    this.k = 1;
    this.moved = moved;
    this.pointers = new Map();
    this.dragged = false;
    host.addEventListener("wheel", (event) => this.#wheel(event, host), { passive: false, signal });
    host.addEventListener("pointerdown", (event) => this.#down(event, host), { signal });
    host.addEventListener("pointermove", (event) => this.#move(event, host), { signal });
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) {
      host.addEventListener(name, (event) => this.pointers.delete(event.pointerId), { signal });
    }
  }

  #wheel(event, host) {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 24 : 1;
    if (event.ctrlKey || event.metaKey) {
      const box = host.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY * unit * 0.004), event.clientX - box.left, event.clientY - box.top);
    } else {
      const sideways = event.shiftKey && !event.deltaX;
      this.x -= (sideways ? event.deltaY : event.deltaX) * unit;
      this.y -= sideways ? 0 : event.deltaY * unit;
      this.moved();
    }
  }

  #down(event, host) {
    if (event.button) return;
    this.dragged = false;
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.start = [event.clientX, event.clientY];
    if (this.pointers.size === 2) host.setPointerCapture(event.pointerId);
  }

  #move(event, host) {
    const last = this.pointers.get(event.pointerId);
    if (!last) return;
    const [x, y] = [event.clientX, event.clientY];
    if (!this.dragged && Math.hypot(x - this.start[0], y - this.start[1]) < 5) return;
    if (!this.dragged) host.setPointerCapture(event.pointerId);
    this.dragged = true;
    if (this.pointers.size === 2) this.#pinch(event.pointerId, x, y, host);
    else {
      this.x += x - last[0];
      this.y += y - last[1];
    }
    this.pointers.set(event.pointerId, [x, y]);
    this.moved();
  }

  #pinch(id, x, y, host) {
    const other = [...this.pointers].find(([key]) => key !== id)[1];
    const last = this.pointers.get(id);
    const before = Math.hypot(last[0] - other[0], last[1] - other[1]);
    const now = Math.hypot(x - other[0], y - other[1]);
    const box = host.getBoundingClientRect();
    if (before > 0) this.zoom(now / before, (x + other[0]) / 2 - box.left, (y + other[1]) / 2 - box.top);
  }

  /** Zoom by a factor around a place of the host, in px. */
  zoom(factor, x, y) {
    const k = Math.min(MOST, Math.max(LEAST, this.k * factor));
    this.x = x - ((x - this.x) * k) / this.k;
    this.y = y - ((y - this.y) * k) / this.k;
    this.k = k;
    this.moved();
  }

  /** Put a world of this size into the host; never larger than life. */
  fit(width, height, hostWidth, hostHeight, least = LEAST) {
    this.k = Math.min(1, Math.max(least, Math.min((hostWidth - 48) / width, (hostHeight - 48) / height)));
    this.x = Math.max(24, (hostWidth - width * this.k) / 2);
    this.y = (hostHeight - height * this.k) / 2;
    this.moved();
  }

  /** Move as little as needed to have a box of the world in view. */
  show(x, y, width, height, hostWidth, hostHeight) {
    const margin = 32;
    const [left, top] = [this.x + x * this.k, this.y + y * this.k];
    const [right, bottom] = [left + width * this.k, top + height * this.k];
    if (left < margin) this.x += margin - left;
    else if (right > hostWidth - margin) this.x -= Math.min(right - hostWidth + margin, left - margin);
    if (top < margin) this.y += margin - top;
    else if (bottom > hostHeight - margin) this.y -= bottom - hostHeight + margin;
    this.moved();
  }
}
