// A page that was opened from a folder (file://) may start no worker, so the search would be silent there. Here a hidden
// frame stands in for the worker: the same script, the same messages. Served pages keep the browser's own workers.
(function () {
  if (location.protocol !== "file:") return;

  function importInFrame() {
    return Array.from(arguments).reduce(function (before, url) {
      return before.then(function () {
        return new Promise(function (loaded) {
          var script = document.createElement("script");
          script.src = url;
          script.onload = loaded;
          document.body.appendChild(script);
        });
      });
    }, Promise.resolve());
  }

  function FrameWorker(url) {
    var worker = new EventTarget();
    var frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    var inner = frame.contentWindow;
    addEventListener("message", function (event) {
      if (event.source !== inner) return;
      worker.dispatchEvent(new MessageEvent("message", { data: event.data }));
      if (worker.onmessage) worker.onmessage(event);
    });
    inner.document.open();
    inner.document.write(
      "<html><body><script>function postMessage(data) { parent.postMessage(data, '*'); }" +
        "importScripts = " + importInFrame + ";</script><script src='" + url + "'></script></body></html>"
    );
    inner.document.close();
    var ready = new Promise(function (loaded) {
      inner.onload = loaded;
    });
    worker.postMessage = function (data) {
      ready.then(function () {
        inner.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
      });
    };
    worker.terminate = function () {
      frame.remove();
    };
    return worker;
  }

  window.Worker = FrameWorker;
})();
