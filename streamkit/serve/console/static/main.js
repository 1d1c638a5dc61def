// The frame: the session, the store and the screen.

import { call, get, onSignedOut, storePath } from "./api.js"
import { link, useHash } from "./router.js"
import { Keys } from "./screens/keys.js"
import { Operations } from "./screens/operations.js"
import { Overview } from "./screens/overview.js"
import { Queues } from "./screens/groups.js"
import { Routes } from "./screens/routes.js"
import { Space, Spaces } from "./screens/space.js"
import { Views } from "./screens/views.js"
import { Button, Command, Empty, Failure, Field, Fragment, Icon, Page, Session, Skeleton, Toasts, can, html, render, seesAll, useEffect, useLoad, useState } from "./ui.js"

const NAV = [
  ["", "Overview", "overview"],
  ["spaces", "Spaces", "spaces"],
  ["queues", "Queues", "queues"],
  ["views", "Views", "views"],
  ["routes", "Routes", "routes"],
  ["operations", "Operations", "operations"],
  ["keys", "Keys", "keys"],
]

function Brand() {
  return html`<a class="brand" href="#/"><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" fill="#0f766e" /><g fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round"><path d="M7 10h11" /><path d="M7 16h18" /><path d="M7 22h7" /></g><circle cx="24" cy="10" r="2" fill="#5eead4" /><circle cx="20" cy="22" r="2" fill="#5eead4" /></svg>streamkit</a>`
}

function Themes() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme || "auto")
  const choose = wanted => {
    setTheme(wanted)
    if (wanted === "auto") delete document.documentElement.dataset.theme
    else document.documentElement.dataset.theme = wanted
    try { localStorage.setItem("streamkit-theme", wanted) } catch { /* storage is off */ }
    dispatchEvent(new Event("themechange"))
  }
  return html`<div class="themes" role="group" aria-label="Theme">${[["auto", "System"], ["light", "Light"], ["dark", "Dark"]].map(([id, name]) =>
    html`<button type="button" aria-pressed=${theme === id ? "true" : "false"} onClick=${() => choose(id)}>${name}</button>`)}</div>`
}

function Login({ problem, said, onDone }) {
  const [key, setKey] = useState("")
  const [error, setError] = useState(problem)
  const [busy, setBusy] = useState(false)
  useEffect(() => { document.title = "Sign in · streamkit" }, [])
  const submit = async event => {
    event.preventDefault()
    if (!key.trim()) { setError("Paste a key first. It begins with sk_."); return }
    setBusy(true)
    try {
      onDone(await call("POST", "console/session", { body: { key } }))
    } catch (refusal) {
      setError(refusal.status === 401 ? "This key is not valid here: it is mistyped, expired or revoked." : refusal.message)
      setBusy(false)
    }
  }
  return html`<main class="login"><div class="card"><${Brand} /><div><h1>Sign in</h1><p class="sub">The key decides what you can see and change. It stays on the server; the browser keeps a session cookie for 12 hours.</p></div>
    <form onSubmit=${submit}><${Field} label="Key"><input class="in mono" type="password" name="key" autocomplete="current-password" spellcheck="false" placeholder="sk_…" value=${key} onInput=${event => setKey(event.target.value)} /><//>
    ${error ? html`<div class="note bad" role="alert">${error}</div>` : said && html`<div class="note" role="status">${said}</div>`}
    <button class="btn primary" type="submit" disabled=${busy}>${busy ? "Signing in…" : "Sign in"}</button></form>
    <${Themes} /></div></main>`
}

/** The store to begin with: the server's own, the key's only one, or the only one that exists. */
function useStores(session) {
  return useLoad(async signal => {
    const known = [...new Set([...(session.store && (!session.stores.length || session.stores.includes(session.store)) ? [session.store] : []), ...session.stores])]
    if (!can(session, "admin")) return known
    const listed = (await get("v1/stores", { limit: 1000 }, signal)).stores
    return [...new Set([...known, ...listed])]
  }, [session.id, session.signed_in])
}

function Frame({ session, onSignOut }) {
  const place = useHash()
  const stores = useStores(session)
  const [open, setOpen] = useState(false)
  const store = place.store || (stores.data && stores.data[0]) || ""
  const [screen = ""] = place.parts
  const full = screen === "spaces" && (place.parts[2] === "entries" || (place.parts[2] === "segments" && place.parts.length === 4))
  const key = place.parts.join("\n")
  useEffect(() => {
    setOpen(false)
    const title = document.getElementById("title")
    if (title && document.activeElement === document.body) title.focus({ preventScroll: true })
  }, [key])
  const nav = store ? NAV.filter(([id]) => id !== "keys" || can(session, "admin")) : []
  const signOut = async () => { try { await call("DELETE", "console/session") } finally { onSignOut() } }
  return html`<${Session.Provider} value=${session}>
    <a class="skip" href="#title" onClick=${event => { event.preventDefault(); document.getElementById("title")?.focus() }}>Go to the content</a>
    <div class="frame">
      <header class="bar"><${Button} kind="ghost square" icon="menu" label="Menu" aria-expanded=${open ? "true" : "false"} onClick=${() => setOpen(true)} /><${Brand} /></header>
      ${open && html`<button class="veil" aria-label="Close the menu" onClick=${() => setOpen(false)}></button>`}
      <aside class=${open ? "side open" : "side"} aria-label="Navigation" onKeyDown=${event => { if (event.key === "Escape") setOpen(false) }}>
        <${Brand} />
        ${stores.data && stores.data.length > 1 && html`<div><div class="label" id="store-label">Store</div>
          <select class="in" aria-labelledby="store-label" value=${store} onChange=${event => { location.hash = link(event.target.value) }}>${stores.data.map(id => html`<option value=${id} selected=${id === store}>${id.slice(0, 8)}…${id.slice(-4)}${id === session.store ? " (own)" : ""}</option>`)}</select></div>`}
        <nav class="nav" aria-label="Screens">${nav.map(([id, name, icon]) => html`<a href=${id ? link(store, id) : link(store)} aria-current=${screen === id ? "page" : null} onClick=${() => setOpen(false)}><${Icon} name=${icon} />${name}</a>`)}</nav>
        <span class="grow"></span>
        <${Themes} />
        <div class="foot"><div class="who">${session.open ? html`<span>No keys: open to this machine</span>` : html`<span title=${`key ${session.id}`}>${session.scopes.join(", ")}</span><${Button} kind="ghost small" icon="out" title="Ends the session of this browser only" onClick=${signOut}>Sign out<//>`}</div>
          <div class="who"><span>streamkit ${session.version}</span></div></div>
      </aside>
      <main class=${full ? "main full" : "main"}>
        ${!store ? html`<${NoStore} stores=${stores} />` : html`<${Screen} key=${`${store}\n${screen}`} store=${store} screen=${screen} place=${place} />`}
      </main>
    </div><${Toasts} /><//>`
}

function NoStore({ stores }) {
  if (stores.error) return html`<${Page} title="Stores"><${Failure} error=${stores.error} retry=${stores.reload} /><//>`
  if (!stores.data) return html`<${Page} title="Stores"><div class="card"><${Skeleton} /></div><//>`
  return html`<${Page} title="There is no store yet"><div class="card"><${Empty} icon="spaces" title="Write the first entry" command=${`export STREAMKIT_STORE=$(uuidgen)\necho '{"placed": 3}' | streamkit produce orders order-42`}><p>A store comes into being with its first write. Any UUID names a new one.</p><//></div><//>`
}

function Screen({ store, screen, place }) {
  const parts = place.parts.slice(1)
  const props = { store, parts, query: place.query }
  switch (screen) {
    case "": return html`<${Overview} ...${props} />`
    case "spaces": return parts.length ? html`<${Space} key=${parts[0]} ...${props} />` : html`<${Spaces} ...${props} />`
    case "queues": return html`<${Queues} ...${props} />`
    case "views": return html`<${Views} ...${props} />`
    case "routes": return html`<${Routes} ...${props} />`
    case "operations": return html`<${Operations} ...${props} />`
    case "keys": return html`<${Keys} ...${props} />`
    default: return html`<${Page} title="There is no such screen"><div class="card"><${Empty} title="The address is wrong"><p><a href=${link(store)}>Go to the overview</a></p><//></div><//>`
  }
}

function App() {
  const [session, setSession] = useState(null)
  const [problem, setProblem] = useState("")
  const [said, setSaid] = useState("")
  useEffect(() => {
    onSignedOut(() => { setProblem("The session has ended. Sign in again."); setSession({ signed_in: false }) })
    begin().then(setSession, error => { setProblem(error.message); setSession({ signed_in: false }) })
  }, [])
  if (!session) return html`<main class="login"><div class="card"><${Skeleton} lines=${4} /></div></main>`
  if (!session.signed_in) return html`<${Login} key=${problem} problem=${problem} said=${said} onDone=${done => { setProblem(""); setSaid(""); setSession(done) }} />`
  return html`<${Frame} session=${session} onSignOut=${() => { setProblem(""); setSaid("This browser is signed out. Sessions in other browsers stay valid until they expire or the key is revoked."); setSession({ signed_in: false }) }} />`
}

/** The session of this browser; with the one-time code of a link, the session that it stands for. */
async function begin() {
  const code = /^#code=([A-Za-z0-9_-]+)$/.exec(location.hash)
  if (!code) return get("console/session")
  history.replaceState(null, "", location.pathname)
  const known = await get("console/session")
  return known.signed_in ? known : call("POST", "console/session", { body: { code: code[1] } })
}

render(html`<${App} />`, document.getElementById("app"))
