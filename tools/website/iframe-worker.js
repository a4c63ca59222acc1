// Browsers start no workers for pages opened from a disk (file:), so search would not work there. For such pages a worker
// is a hidden frame: the script runs in it, and messages go to and fro as events. Elsewhere nothing changes.
if (location.protocol === "file:") {
  // As between a page and a worker, messages are copies, and arrive after their sender has gone on.
  const send = (target, realm, data) => {
    const event = new realm.MessageEvent("message", { data: realm.structuredClone(data) });
    setTimeout(() => target.dispatchEvent(event));
  };

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.addEventListener("message", (event) => this.onmessage?.(event));
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => send(this, window, data);
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      this.ready = new Promise((resolve) => {
        script.onload = resolve;
      });
      script.onerror = () => this.onerror?.(new ErrorEvent("error", { cancelable: true }));
      inside.document.body.append(script);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => send(inside, inside, data));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
