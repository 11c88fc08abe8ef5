/* The search of the theme runs in a worker, which browsers refuse to pages from a folder. This one runs in a frame. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const base = new URL(url, location);
      const waiting = [];
      this.send = (data) => waiting.push(data);
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) =>
        urls.reduce(
          (before, address) =>
            before.then(
              () =>
                new Promise((resolve, reject) => {
                  const script = inside.document.createElement("script");
                  script.src = new URL(address, base);
                  script.onload = resolve;
                  script.onerror = reject;
                  inside.document.head.append(script);
                })
            ),
          Promise.resolve()
        );
      inside.importScripts(base).then(() => {
        this.send = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
        waiting.forEach(this.send);
      });
    }
    postMessage(data) {
      this.send(data);
    }
    terminate() {}
  };
}
