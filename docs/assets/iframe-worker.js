// Makes the search of the site work from a folder. Browsers refuse web workers on pages opened from
// disk, so there this class runs the worker's script in a hidden frame. It has the part of the
// interface of `Worker` that the theme uses.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    this.loaded = new Promise((resolve) => this.load(String(url), resolve));
  }

  load(url, resolve) {
    const frameWindow = this.frame.contentWindow;
    frameWindow.document.write("<!doctype html><body>");
    frameWindow.document.close();
    frameWindow.postMessage = (data) => this.receive(data);
    frameWindow.importScripts = async (...urls) => {
      for (const imported of urls) await this.addScript(imported);
    };
    this.addScript(url).then(resolve);
  }

  addScript(url) {
    return new Promise((resolve, reject) => {
      const script = this.frame.contentDocument.createElement("script");
      script.src = url;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${url} cannot be loaded`));
      this.frame.contentDocument.body.append(script);
    });
  }

  receive(data) {
    const event = new MessageEvent("message", { data });
    this.dispatchEvent(event);
    this.onmessage?.(event);
  }

  async postMessage(data) {
    await this.loaded;
    this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
