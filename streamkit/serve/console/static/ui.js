// What every screen is made of.

const { h, render, Fragment, createContext } = window.preact
export const { useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback, useContext, useReducer, useId } = window.preactHooks
export const html = window.htm.bind(h)
export { render, Fragment, createContext }

const ICONS = {
  overview: "M3 3h6v7H3zM11 3h6v4h-6zM11 10h6v7h-6zM3 13h6v4H3z",
  spaces: "M3 5.5C3 4.1 6.1 3 10 3s7 1.1 7 2.5S13.9 8 10 8 3 6.9 3 5.500zM3 5.500v9C3 15.9 6.1 17 10 17s7-1.1 7-2.500v-9M3 10c0 1.4 3.1 2.5 7 2.500s7-1.1 7-2.5",
  queues: "M3 5h14M3 10h9M3 15h5M15 12v5M12.5 14.5 15 17l2.5-2.5",
  views: "M2.5 10S5 4.5 10 4.5 17.5 10 17.5 10 15 15.5 10 15.5 2.5 10 2.5 10zM10 12.200a2.2 2.2 0 1 0 0-4.4 2.2 2.2 0 0 0 0 4.400z",
  routes: "M4 16V9a3 3 0 0 1 3-3h9M13 3l3 3-3 3M4 16a1 1 0 1 0 0 .010",
  operations: "M11.5 3 4 11.500h5L8.5 17 16 8.500h-5z",
  keys: "M7 13a4 4 0 1 1 3.6-5.700H17v3h-2v2h-3v-2h-1.400A4 4 0 0 1 7 13zM6.5 9h.010",
  menu: "M3 5.500h14M3 10h14M3 14.500h14",
  close: "M5 5l10 10M15 5 5 15",
  copy: "M7 7h9v9H7zM4 13V4h9",
  check: "M4 10.5 8 14.5 16 6",
  refresh: "M16 10a6 6 0 1 1-1.8-4.300L16 7.500M16 3.500v4h-4",
  play: "M6 4l9 6-9 6z",
  back: "M12.5 4 6.5 10l6 6",
  next: "M7.5 4l6 6-6 6",
  plus: "M10 4v12M4 10h12",
  out: "M8 4H4v12h4M12 7l3 3-3 3M15 10H8",
}

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true"><path d=${ICONS[name]} /></svg>`
}

export const Session = createContext(null)

export function can(session, scope) {
  return session.scopes.includes(scope) || session.scopes.includes("admin")
}

/** True if the key is for everything in a store: figures of a whole store are refused to others. */
export function seesAll(session) {
  return !session.spaces.length && !session.segments.length
}

/** A button. `needs`: the scope without which it does nothing but say so. */
export function Button({ kind = "", icon, needs, onClick, children, label, type = "button", disabled, ...rest }) {
  const session = useContext(Session)
  const lacks = needs && session && !can(session, needs)
  const off = lacks || disabled
  const title = lacks ? `This needs a key with the scope “${needs}”` : label
  return html`<button type=${type} class=${`btn ${kind}`} aria-disabled=${off ? "true" : null} title=${title}
    aria-label=${label ? (lacks ? `${label}. ${title}` : label) : null}
    onClick=${event => { if (off) { event.preventDefault(); if (lacks) toast(title, "bad") } else if (onClick) onClick(event) }} ...${rest}>
    ${icon && html`<${Icon} name=${icon} />`}${children}</button>`
}

export function Field({ label, hint, children }) {
  return html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`
}

export function Badge({ kind = "", dot, pulse, children }) {
  return html`<span class=${`badge ${kind}`}>${dot && html`<i class=${pulse ? "dot pulse" : "dot"}></i>`}${children}</span>`
}

export function Copy({ text, label = "Copy", small = true, children }) {
  const [done, setDone] = useState(false)
  const copy = async () => {
    await copyText(typeof text === "function" ? text() : text)
    setDone(true)
    setTimeout(() => setDone(false), 1500)
  }
  return html`<${Button} kind=${`ghost ${small ? "small" : ""}`} icon=${done ? "check" : "copy"} onClick=${copy}
    label=${children ? null : label}>${children || (done ? "Copied" : "")}<//>`
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text)
  } catch { // not a secure context, or not permitted
    const area = document.createElement("textarea")
    area.value = text
    document.body.append(area)
    area.select()
    document.execCommand("copy")
    area.remove()
  }
  document.documentElement.dataset.copied = text
}

export function Command({ text }) {
  return html`<div class="command"><pre tabindex="0" aria-label="Command"><code>${text}</code></pre><${Copy} text=${text} label="Copy the command" /></div>`
}

export function Empty({ icon = "spaces", title, command, children }) {
  return html`<div class="empty"><${Icon} name=${icon} /><h2>${title}</h2>${children}${command && html`<${Command} text=${command} />`}</div>`
}

export function Skeleton({ lines = 5 }) {
  return html`<div class="skeleton" role="status"><span class="sr">Loading</span>
    ${Array.from({ length: lines }, (_, at) => html`<i style=${{ width: `${92 - (at * 17) % 45}%` }}></i>`)}</div>`
}

export function Failure({ error, retry }) {
  return html`<div class="note bad" role="alert"><div><strong>${error.title || "This did not work"}</strong></div><div>${error.message}</div>
    ${retry && html`<div class="tools"><${Button} kind="small" icon="refresh" onClick=${retry}>Try again<//></div>`}</div>`
}

/** What a load gives: a skeleton, a failure or the children with the data. */
export function Loaded({ of, lines, children }) {
  if (of.data !== undefined) return html`<${Fragment}>${of.error && html`<${Failure} error=${of.error} retry=${of.reload} />`}${children(of.data)}<//>`
  return of.error ? html`<div class="skeleton"><${Failure} error=${of.error} retry=${of.reload} /></div>` : html`<${Skeleton} lines=${lines} />`
}

/** Calls `load(signal)` now, when `deps` change, and every `every` ms while the page is seen. */
export function useLoad(load, deps, every = 0) {
  const [state, setState] = useState({ data: undefined, error: null })
  const [turn, setTurn] = useState(0)
  const key = JSON.stringify(deps)
  const last = useRef(key)
  useEffect(() => {
    if (load === null) return undefined
    const abort = new AbortController()
    if (last.current !== key) setState({ data: undefined, error: null })
    last.current = key
    let timer = 0
    const run = async () => {
      if (document.hidden && every) { timer = setTimeout(run, every); return }
      const begun = performance.now()
      try {
        const data = await load(abort.signal)
        if (!abort.signal.aborted) setState({ data, error: null })
      } catch (error) {
        if (!abort.signal.aborted) setState(was => ({ data: was.data, error }))
      }
      // A load that takes long, such as the size of a store of 10,000 spaces, is repeated less often.
      if (every && !abort.signal.aborted) timer = setTimeout(run, Math.max(every, 20 * (performance.now() - begun)))
    }
    run()
    return () => { abort.abort(); clearTimeout(timer) }
  }, [key, turn, every])
  return { ...state, reload: useCallback(() => setTurn(n => n + 1), []) }
}

export function Dialog({ title, onClose, children }) {
  const ref = useRef(null)
  const id = useId()
  useEffect(() => {
    const from = document.activeElement
    const dialog = ref.current
    dialog.showModal()
    return () => { dialog.close(); if (from && from.isConnected) from.focus() }
  }, [])
  return html`<dialog ref=${ref} aria-labelledby=${id} onCancel=${event => { event.preventDefault(); onClose() }}
    onClick=${event => { if (event.target === ref.current) onClose() }}>
    <div class="inner"><h2 id=${id}>${title}</h2>${children}</div></dialog>`
}

let tell = () => {}
export function toast(text, kind = "good") { tell(text, kind) }

export function Toasts() {
  const [items, setItems] = useState([])
  tell = (text, kind) => {
    const item = { text, kind }
    setItems(was => [...was.slice(-3), item])
    setTimeout(() => setItems(was => was.filter(each => each !== item)), kind === "bad" ? 9000 : 4500)
  }
  return html`<div class="toasts" role="status" aria-live="polite">${items.map(item => html`<div class=${`toast ${item.kind}`}>${item.text}</div>`)}</div>`
}

/** Runs a change and says how it went; returns its answer, or undefined. */
export async function attempt(change, done) {
  try {
    const answer = await change()
    if (done) toast(typeof done === "function" ? done(answer) : done)
    return answer === undefined ? null : answer
  } catch (error) {
    toast(error.message, "bad")
    return undefined
  }
}

export function Page({ crumbs = [], title, badge, actions, tabs, full, children }) {
  useEffect(() => { document.title = `${title} · streamkit` }, [title])
  return html`<div class="page">
    ${crumbs.length > 0 && html`<nav aria-label="Path"><ol class="crumbs">${crumbs.map(([name, href]) => html`<li><a href=${href}>${name}</a></li>`)}</ol></nav>`}
    <div class="head"><h1 tabindex="-1" id="title">${title}</h1>${badge}<span class="grow"></span>${actions}</div>
    ${tabs && html`<nav class="tabs" aria-label="Parts of ${title}">${tabs.map(tab => html`<a href=${tab.href} aria-current=${tab.current ? "page" : null}>${tab.name}</a>`)}</nav>`}
    ${children}</div>`
}

export function Tile({ name, value, unit, more, kind = "", children }) {
  return html`<div class=${`tile ${kind}`}><dt>${name}</dt><dd>${value}${unit && html` <small>${unit}</small>`}</dd>${(more || children) && html`<dd class="more">${more}${children}</dd>`}</div>`
}
