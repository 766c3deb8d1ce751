// From the file system browsers start no worker. Then the one of the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.receive(data);
      inside.importScripts = (...scripts) =>
        scripts.reduce((before, script) => before.then(() => this.run(script)), Promise.resolve());
      this.ready = this.run(String(address));
    }

    run(script) {
      return new Promise((done, failed) => {
        const tag = this.frame.contentDocument.createElement("script");
        Object.assign(tag, { src: script, onload: done, onerror: failed });
        this.frame.contentDocument.body.append(tag);
      });
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
