// The page follows the store, and can be used by keys alone. Without this script everything can
// still be read, and broken after one question.
"use strict";
(() => {
  const live = document.getElementById("live"), events = document.body.dataset.events;
  const query = (s, from = document) => [...from.querySelectorAll(s)];
  let shownAt = Date.now(), busy = false, again = false;

  // Rows and parts have ids: what differs is exchanged, the rest stays as it is, with its focus
  // and its place. The server sends the whole page again, so there is one description of it.
  function exchange(old, fresh) {
    const by = new Map([...old.children].filter((e) => e.id).map((e) => [e.id, e]));
    let at = old.firstElementChild;
    for (const e of [...fresh.children]) {
      const mine = by.get(e.id);
      if (mine && text(mine) === text(e)) {
        if (mine !== at) old.insertBefore(mine, at); else at = at.nextElementSibling;
        by.delete(e.id);
        continue;
      }
      const put = document.importNode(e, true);
      if (mine) {
        if (mine.classList.contains("sel")) put.classList.add("sel");
        const focus = query("a, button", mine).indexOf(document.activeElement);
        if (mine === at) at = at.nextElementSibling;
        mine.remove();
        old.insertBefore(put, at);
        if (focus >= 0) query("a, button", put)[focus]?.focus();
        by.delete(e.id);
      } else old.insertBefore(put, at);
    }
    for (const e of by.values()) e.remove();
  }
  // What a row says, without its selection and the lease that runs by itself.
  const text = (e) => (e.dataset.as ??= e.outerHTML.replace(/ data-as="[^"]*"/, ""));

  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.redirected) { location.reload(); return; }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const parts = query("[data-live]");
      const same = parts.every((p) => fresh.getElementById(p.id)) && query("[data-live]", fresh).length === parts.length;
      if (!same) query("#main").forEach((m) => m.replaceWith(document.importNode(fresh.getElementById("main"), true)));
      else parts.forEach((p) => exchange(p, fresh.getElementById(p.id)));
      query("footer time").forEach((t) => t.replaceWith(document.importNode(fresh.querySelector("footer time"), true)));
      if (answer.ok) shownAt = Date.now();
    } catch { /* the badge tells how old the page is */ } finally {
      busy = false;
      if (again) { again = false; refresh(); }
    }
  }

  // Leases run between two looks of the server.
  function run() {
    const passed = (Date.now() - shownAt) / 1000;
    for (const l of query(".lease[data-ttl]")) {
      const left = Math.max(0, Math.min(100, 100 * (1 - (+l.dataset.age + passed) / l.dataset.ttl)));
      l.querySelector(".left").setAttribute("width", left.toFixed(1));
      l.querySelector("span").textContent = age(+l.dataset.age + passed) + " ago";
    }
    if (!live) return;
    const old = passed > 12; // the server says each second, or each ten of a large store, that it is there
    live.classList.toggle("stale", old);
    const says = old ? age(passed) + " old" : "live";
    if (live.lastElementChild.textContent !== says && (!old || Math.round(passed) % 5 === 0)) live.lastElementChild.textContent = says;
  }
  const age = (s) => s < 10 ? s.toFixed(1) + "s" : s < 60 ? Math.floor(s) + "s" : Math.floor(s / 60) + "m";

  if (events && window.EventSource) {
    const source = new EventSource(events);
    let since = 0;
    const look = (e) => {
      // Ages are looked at anew now and then, also where nothing else changed.
      if (e.type !== "same" || Date.now() - since > 5000) { since = Date.now(); refresh(); }
      else shownAt = Math.max(shownAt, since);
    };
    source.addEventListener("changed", look);
    source.addEventListener("same", look);
    source.addEventListener("trouble", look);
    setInterval(run, 1000);
    run();
  }

  // Keys.
  const rows = () => query("tbody#rows tr");
  function move(by) {
    const all = rows(), at = all.findIndex((r) => r.classList.contains("sel"));
    const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
    if (!next) return;
    all[at]?.classList.remove("sel");
    next.classList.add("sel");
    const link = next.querySelector("a");
    link?.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }
  function help() {
    const d = document.createElement("dialog"), list = document.createElement("dl");
    d.className = "help";
    for (const [key, what] of [["/", "filter by name"], ["j k", "next, previous lock"], ["Enter", "open it"], ["b", "break the lock that is shown or selected"], ["h", "all locks"], ["Esc", "close"]]) {
      const k = document.createElement("dt"), t = document.createElement("dd");
      k.append(Object.assign(document.createElement("kbd"), { textContent: key }));
      t.textContent = what;
      list.append(k, t);
    }
    d.append(Object.assign(document.createElement("h2"), { textContent: "Keys" }), list);
    open(d);
  }
  function open(d) {
    const before = document.activeElement;
    document.body.append(d);
    d.addEventListener("close", () => { d.remove(); before?.focus(); });
    d.showModal();
  }
  // The question before a break, which is a page without this script, as a dialog.
  async function ask(href) {
    const answer = await fetch(href).catch(() => null);
    const section = answer?.ok && new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("ask");
    if (!section) { location.href = href; return; }
    const d = document.createElement("dialog");
    d.setAttribute("aria-labelledby", "ask-h");
    d.append(document.importNode(section, true));
    d.querySelector("#cancel").addEventListener("click", (e) => { e.preventDefault(); d.close(); });
    open(d);
    d.querySelector("#reason")?.focus();
  }
  document.addEventListener("click", (e) => {
    const link = e.target.closest?.('a[href*="break="]');
    if (!link || e.ctrlKey || e.metaKey || e.shiftKey) return;
    e.preventDefault();
    ask(link.href);
  });
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
    if (/^(input|textarea|select)$/i.test(e.target.tagName)) { if (e.key === "Escape") e.target.blur(); return; }
    const act = {
      "/": () => document.querySelector(".search input")?.focus(),
      j: () => move(1), k: () => move(-1), "?": help,
      h: () => { location.href = document.querySelector(".brand").href; },
      b: () => {
        const here = document.getElementById("break"), link = document.querySelector("tr.sel a");
        if (here) here.click();
        else if (link) location.href = link.href;
      },
    }[e.key];
    if (act) { e.preventDefault(); act(); }
  });
  query(".keys").forEach((k) => { k.hidden = false; });
  query(".follows").forEach((f) => { f.hidden = !events; });

  // The link that serve prints has its key behind the #, which no server log sees.
  const login = document.querySelector("form[data-login]"), key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (login && key) {
    history.replaceState(null, "", location.pathname + location.search);
    login.elements.key.value = key;
    login.submit();
  }
})();
