// A page that is opened as a file may start no worker. The theme's search then runs in a hidden frame, by the same messages.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    #waiting = [];
    #frame = null;
    constructor(url) {
      super();
      const element = Object.assign(document.createElement("iframe"), { hidden: true });
      document.body.append(element);
      const frame = element.contentWindow;
      frame.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = Object.assign(frame.document.createElement("script"), { src: url });
      script.onload = () => {
        this.#frame = frame;
        this.#waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      frame.document.head.append(script);
    }
    postMessage(data) {
      if (this.#frame) this.#frame.dispatchEvent(new MessageEvent("message", { data }));
      else this.#waiting.push(data);
    }
  };
}
