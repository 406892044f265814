// Where data comes from: inside this file, from files beside it, or from `cooperbench view`.

let overview = JSON.parse(byId("overview").textContent);
const details = new Map();

async function unpacked(base64) {
  const binary = atob(base64.trim());
  const bytes = Uint8Array.from(binary, (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function insideText(id) {
  const found = () => byId("detail-" + id);
  if (!found() && document.readyState === "loading") {
    await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
  }
  if (!found()) throw new Error("this pair is not in the file: it was not written to its end");
  return found().textContent;
}

const arrived = new Map();

function besideText(id) {
  globalThis.cooperbenchDetail ??= (number, text) => arrived.get(number)?.(text);
  const policy = (globalThis.cooperbenchPolicy ??= globalThis.trustedTypes?.createPolicy("cooperbench", {
    createScriptURL: (text) => text,
  }) ?? { createScriptURL: (text) => text });
  return new Promise((done, fail) => {
    arrived.set(id, done);
    const script = document.createElement("script");
    script.src = policy.createScriptURL(`${overview.folder}/${Number(id)}.js`);
    script.onerror = () => fail(new Error(`cannot read ${overview.folder}/${id}.js: it must lie beside this file`));
    script.onload = () => script.remove();
    document.head.append(script);
  });
}

async function liveDetail(id) {
  const known = details.get(id);
  const answer = await fetch(`detail/${Number(id)}`, { cache: "no-store", headers: known ? { "If-None-Match": known.tag } : {} });
  if (answer.status === 304) return known.data;
  if (!answer.ok) throw new Error(`the server says: ${answer.status} ${answer.statusText}`);
  const data = await answer.json();
  details.set(id, { tag: answer.headers.get("ETag"), data });
  return data;
}

async function detailOf(id) {
  if (overview.mode === "live") return liveDetail(id);
  if (!details.has(id)) {
    const text = overview.mode === "inside" ? insideText(id) : besideText(id);
    details.set(id, text.then(unpacked));
    details.get(id).catch(() => details.delete(id));
  }
  return details.get(id);
}

// True when there is something new.
async function refreshOverview() {
  const answer = await fetch("overview", { cache: "no-store", headers: { "If-None-Match": overview.tag } });
  if (answer.status === 304) return false;
  if (!answer.ok) throw new Error(String(answer.status));
  overview = await answer.json();
  return true;
}
