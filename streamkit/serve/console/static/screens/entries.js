// Entries of a space or segment: start anywhere, filter, follow live, look at one.

import { call, get, segmentPath, spacePath, storePath, url } from "../api.js"
import { isTree } from "../numbers.js"
import { Reading, idOf, isGap } from "../reading.js"
import { binarySize, clock, cut, fine, number, plural, time } from "../format.js"
import { matches, parseFilter } from "../filter.js"
import { link, parse } from "../router.js"
import { Rows } from "../rows.js"
import { Tree } from "../json.js"
import { Badge, Button, Copy, Dialog, Empty, Failure, Field, Session, Skeleton, attempt, can, html, toast, useContext, useEffect, useLoad, useMemo, useReducer, useRef, useState } from "../ui.js"

const SLICE = 6
/** Milliseconds for which a filter looks at entries before the page is drawn again. */
const ENOUGH = 100
const FURTHEST = 50000

const payloadLine = entry => (entry.json !== undefined ? JSON.stringify(entry.json) : entry.text !== undefined ? entry.text : plural(binarySize(entry.base64 || ""), "byte")).slice(0, 400)
const REASONS = { trimmed: "trimmed", expired: "expired", erased: "erased", deleted: "deleted" }

function gapText({ gap }) {
  const count = gap.last_sequence - gap.first_sequence + 1
  const what = gap.segment ? `${plural(count, "entry", "entries")} ${REASONS[gap.reason] || gap.reason} · ${gap.segment} ${number(gap.first_sequence)}–${number(gap.last_sequence)}` : `${plural(count, "transaction")} ${REASONS[gap.reason] || gap.reason} · ${number(gap.first_sequence)}–${number(gap.last_sequence)}`
  return what
}

/** The items that match, and how far the filter has come. It works in slices, so that the page stays quick. */
function useFiltered(reading, version, text) {
  const terms = useMemo(() => parseFilter(text), [text])
  const state = useRef({ text: "", found: [], seen: 0, items: null, shift: 0 })
  const [, redraw] = useReducer(n => n + 1, 0)
  const now = state.current
  useEffect(() => {
    if (!terms.length) return undefined
    let frame = 0
    const work = () => {
      const end = performance.now() + SLICE
      const items = reading.items
      const same = now.text === text && now.items === items && now.shift === reading.shift
      if (!same) Object.assign(now, { text, found: [], seen: 0, items, shift: reading.shift })
      while (now.seen < items.length && performance.now() < end) {
        if (matches(items[now.seen], terms)) now.found.push(items[now.seen])
        now.seen += 1
      }
      redraw()
      if (now.seen < items.length) frame = requestAnimationFrame(work)
    }
    frame = requestAnimationFrame(work)
    return () => cancelAnimationFrame(frame)
  }, [version, text, reading])
  if (!terms.length) return { items: reading.items, done: true, filtered: false }
  return { items: now.text === text ? now.found : [], done: now.text === text && now.seen >= reading.items.length, filtered: true }
}

const quote = text => `'${text.replaceAll("'", "'\\''")}'`

export function recipes(store, space, segment, entry) {
  const at = entry ? `/${entry.sequence}` : ""
  const name = entry ? entry.segment : segment
  const path = name === null ? `${spacePath(store, space)}/entries` : `${segmentPath(store, space, name)}/entries${at}`
  const python = name === null
    ? `for entry in store.consume_space(${JSON.stringify(space)}):\n    print(entry.segment, entry.sequence, entry.payload)`
    : entry ? `entry = next(store.consume_segment(${JSON.stringify(space)}, ${JSON.stringify(name)}, min_sequence=${entry.sequence}, max_sequence=${entry.sequence}))\nprint(entry.payload)`
      : `for entry in store.consume_segment(${JSON.stringify(space)}, ${JSON.stringify(name)}):\n    print(entry.sequence, entry.payload)`
  const words = name === null ? quote(space) : `${quote(space)} ${quote(name)}`
  const options = `${entry ? ` --min-sequence ${entry.sequence} --max-sequence ${entry.sequence}` : ""} --store ${store}`
  const dashed = space.startsWith("-") || name?.startsWith("-")
  return {
    curl: `curl ${quote(String(url(path)))} -H "Authorization: Bearer $STREAMKIT_KEY"`,
    Python: `import streamkit\n\nstore = streamkit.connect().store(${JSON.stringify(store)})\n${python}`,
    "Command line": dashed ? `streamkit consume${options} -- ${words}` : `streamkit consume ${words}${options}`,
  }
}

export function CopyAs({ of }) {
  return html`<span class="tools" role="group" aria-label="Copy as">${Object.entries(of).map(([name, text]) => html`<${Copy} text=${text}>${name}<//>`)}</span>`
}

function Detail({ store, space, item, inSegment, onClose }) {
  const place = useRef(null)
  if (isGap(item)) {
    return html`<aside class="detail" aria-label="The chosen gap"><header><h2>Gap</h2><${Button} kind="ghost square" icon="close" label="Close" onClick=${onClose} /></header><div class="inside">
      <div class="note warn">${gapText(item)}</div><p class="sub">These entries existed and can no longer be read. Readers get the gap in its place.</p></div></aside>`
  }
  const raw = item.json !== undefined ? JSON.stringify(item.json, null, 2) : item.text ?? item.base64 ?? ""
  const metadata = Object.entries(item.metadata || {})
  const travel = link(store, "spaces", space, "segments", item.segment, "travel", { at: item.sequence })
  return html`<aside class="detail" aria-label="The chosen entry" ref=${place}><header><h2>${item.metadata?.event || item.segment} <span class="sub">#${number(item.sequence)}</span></h2><${Button} kind="ghost square" icon="close" label="Close" onClick=${onClose} /></header>
    <div class="inside" tabindex="0" role="region" aria-label="Entry">
      <section><header><h3>Payload${item.base64 !== undefined && html` <span class="sub">${plural(binarySize(item.base64), "byte")}, as base64</span>`}</h3><${Copy} text=${raw} label="Copy the payload" /></header>
        ${isTree(item.json) ? html`<${Tree} key=${idOf(item)} value=${item.json} label="Payload" />` : html`<pre class="raw" tabindex="0" role="region" aria-label="Payload">${raw === "" ? "(empty)" : cut(raw, 100000)}</pre>`}</section>
      ${metadata.length > 0 && html`<section><header><h3>Metadata</h3></header><dl class="facts">${metadata.map(([name, value]) => html`<dt class="mono">${name}</dt><dd class="mono">${value}</dd>`)}</dl></section>`}
      <section><header><h3>Where it is</h3></header><dl class="facts"><dt>Segment</dt><dd><a href=${link(store, "spaces", space, "segments", item.segment)}>${item.segment}</a></dd><dt>Sequence</dt><dd>${number(item.sequence)}</dd><dt>Time</dt><dd>${fine(item.timestamp)}</dd><dt>Transaction</dt><dd class="mono">${item.trx.id} · ${number(item.trx.number)}</dd><dt>Tier</dt><dd>${item.tier || "log"}</dd><dt>Offset</dt><dd class="mono">${item.offset}</dd></dl></section>
      <section><header><h3>Copy as</h3></header><${CopyAs} of=${recipes(store, space, null, item)} /></section>
      <section><div class="tools"><a class="btn small" href=${travel}>State at this entry</a>${!inSegment && html`<a class="btn small" href=${link(store, "spaces", space, "segments", item.segment)}>All of ${item.segment}</a>`}</div></section>
    </div></aside>`
}

function Append({ store, space, segment, onClose }) {
  const [name, setName] = useState(segment || "")
  const [text, setText] = useState('{"placed": 3}')
  const [expected, setExpected] = useState("")
  const [error, setError] = useState("")
  const submit = async event => {
    event.preventDefault()
    let written = JSON.stringify({ text })
    try {
      JSON.parse(text)
      written = `{"json": ${text}}` // as it was typed: JavaScript would round its numbers
    } catch { /* it is text */ }
    try {
      const status = await call("POST", `${segmentPath(store, space, name)}/entries`, { text: written, headers: expected === "" ? {} : { "If-Match": `"${expected}"` } })
      toast(`Entry ${number(status.last_sequence)} of ${name} is written`)
      onClose()
    } catch (refusal) { setError(refusal.message) }
  }
  return html`<${Dialog} title="Append an entry" onClose=${onClose}><form onSubmit=${submit} style=${{ padding: 0 }}>
    <${Field} label="Segment"><input class="in" required value=${name} onInput=${event => setName(event.target.value)} /><//>
    <${Field} label="Payload" hint="JSON; anything else is stored as text"><textarea class="in" rows="6" value=${text} onInput=${event => setText(event.target.value)}></textarea><//>
    <${Field} label="Expected last sequence" hint="Optional. The write is refused if another writer was faster."><input class="in" inputmode="numeric" pattern="[0-9]*" value=${expected} onInput=${event => setExpected(event.target.value)} /><//>
    ${error && html`<div class="note bad" role="alert">${error}</div>`}
    <div class="tools"><${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" type="submit">Append<//></div></form><//>`
}

/** Where a list of entries begins: the part of the address that another list needs. */
export const startOf = query => ["from", "at", "live"].map(name => query.get(name) || "").join(" ")

/** Nothing to show, because the space or segment is empty or does not exist. */
export function EmptyPlace({ store, space, segment = null, title, command, children }) {
  const name = segment ?? space
  const found = useLoad(async signal => {
    const listed = segment === null ? (await get(`${storePath(store)}/spaces`, { prefix: name, limit: 1 }, signal)).spaces.map(each => each.name)
      : (await get(`${spacePath(store, space)}/segments`, { prefix: name, limit: 1 }, signal)).segments.map(each => each.segment)
    return listed.includes(name)
  }, [store, space, name])
  if (found.data !== false) return html`<${Empty} title=${title} command=${command}>${children}<//>`
  return html`<${Empty} title=${segment === null ? "There is no such space" : "There is no such segment"} command=${command}><p>${segment === null ? `The store has no space “${space}”.` : `The space has no segment “${segment}”.`} A first write creates it.</p><//>`
}

/** The entry that an address asks for, or null. */
function wantedOf(query) {
  const sequence = Number(query.get("entry"))
  return sequence > 0 ? { sequence, of: query.get("of") || "" } : null
}

const narrow = matchMedia("(max-width: 860px)")

/** The address with another filter and entry. */
function addressWith(filter, item) {
  const [path, asked] = location.hash.split("?")
  const query = new URLSearchParams(asked || "")
  const set = (name, value) => value ? query.set(name, value) : query.delete(name)
  set("filter", filter)
  set("entry", item && String(item.sequence))
  set("of", item && item.segment)
  return `${location.pathname}${location.search}${path}${String(query) && `?${query}`}`
}

/** `segment` is null for all of a space. */
export function Entries({ store, space, segment = null, query }) {
  const session = useContext(Session)
  const asked = query.get("from") || "end"
  const value = query.get("at") || ""
  const start = useMemo(() => ({ kind: asked, value: asked === "time" ? Number(value) : asked === "sequence" ? Number(value) : value }), [asked, value])
  const [version, setVersion] = useState(0)
  const [filter, setFilter] = useState(query.get("filter") || "")
  const [chosen, setChosen] = useState(null)
  const [open, setOpen] = useState(false)
  const [turn, setTurn] = useState(0)
  const [wanted, setWanted] = useState(wantedOf(query))
  const split = useRef(null)
  const [stick, setStick] = useState(true)
  const [appends, setAppends] = useState(false)
  const [copies, setCopies] = useState(false)
  const [kind, setKind] = useState(asked)
  const [text, setText] = useState(asked === "time" && value ? time(Number(value)).replace(" ", "T") : value)
  const reading = useMemo(() => new Reading(store, space, segment, start, setVersion), [store, space, segment, start, turn])
  useEffect(() => () => reading.close(), [reading])
  useEffect(() => { setStick(start.kind === "end"); setChosen(null); setOpen(false); setKind(start.kind) }, [reading])
  useEffect(() => { if (query.get("live") === "1" && !reading.live && !reading.loading && reading.items !== null && version > 1) reading.follow() }, [version > 1, reading])
  const shown = useFiltered(reading, version, filter)
  const items = shown.items
  const selected = chosen === null ? -1 : items.indexOf(chosen)

  // The filter and the chosen entry are in the address, so that a reload and Back keep them.
  useEffect(() => {
    const [path] = location.hash.split("?")
    const timer = setTimeout(() => {
      if (location.hash.split("?")[0] !== path || startOf(parse(location.hash).query) !== startOf(query)) return // on the way to another screen
      const item = open && chosen && !isGap(chosen) ? chosen : null
      if (wanted === null) history.replaceState(history.state, "", addressWith(filter, item))
    }, 300)
    return () => clearTimeout(timer)
  }, [filter, chosen, open, wanted])
  useEffect(() => {
    const moved = () => {
      const now = parse(location.hash).query
      if (startOf(now) !== startOf(query)) return
      setFilter(now.get("filter") || "")
      const asked = wantedOf(now)
      if (asked === null) setOpen(false)
      else setWanted(asked)
    }
    addEventListener("hashchange", moved)
    return () => removeEventListener("hashchange", moved)
  }, [])
  useEffect(() => {
    if (wanted === null || reading.loading || version < 2) return
    const name = segment ?? wanted.of
    const choose = item => { setChosen(item); setOpen(true); setStick(false) }
    const item = reading.items.find(each => !isGap(each) && each.sequence === wanted.sequence && each.segment === name)
    setWanted(null)
    if (item) choose(item)
    else if (name) get(`${segmentPath(store, space, name)}/entries/${wanted.sequence}`).then(choose, () => toast(`Entry ${number(wanted.sequence)} of ${name} can no longer be read`, "bad"))
  }, [wanted, version, reading])
  const choose = item => {
    if (narrow.matches && !open && !isGap(item)) history.pushState({ panel: true }, "", addressWith(filter, item))
    setChosen(item)
    setOpen(true)
  }
  const close = () => {
    setOpen(false)
    if (history.state?.panel) history.back()
    requestAnimationFrame(() => split.current?.querySelector(".rows")?.focus())
  }

  // A filter reads on until it has enough, or has looked at everything.
  const towards = start.kind === "end" ? "earlier" : "later"
  const searching = shown.filtered && !reading.live && items.length < ENOUGH && reading.items.length < FURTHEST && reading[towards]
  useEffect(() => {
    if (searching && shown.done && !reading.loading && !reading.error) towards === "earlier" ? reading.loadEarlier(2000) : reading.loadLater(2000)
  }, [searching, shown.done, version])

  const go = event => {
    event.preventDefault()
    const wanted = { from: kind }
    if (kind === "time") {
      const ms = /^\d{10,}$/.test(text) ? Number(text) : Date.parse(text)
      if (Number.isNaN(ms)) { toast("Write the time as 2026-01-31T08:00:00, or in milliseconds", "bad"); return }
      wanted.at = ms
    } else if (kind === "sequence") {
      if (!/^\d+$/.test(text)) { toast("A sequence is a whole number", "bad"); return }
      wanted.at = text
    } else if (kind === "offset") {
      if (!/^[0-9a-f]+$/.test(text)) { toast("An offset is the hexadecimal text of an entry's offset", "bad"); return }
      wanted.at = text
    }
    if (filter) wanted.filter = filter
    if (startOf(new URLSearchParams(wanted)) === startOf(query)) { setTurn(turn + 1); return }
    const to = segment === null ? link(store, "spaces", space, "entries", wanted) : link(store, "spaces", space, "segments", segment, wanted)
    location.hash = to
  }
  const needsValue = kind === "time" || kind === "sequence" || kind === "offset"
  const row = at => {
    const item = items[at]
    const key = idOf(item).replace(/\s/g, "_")
    if (isGap(item)) return { key, kind: "gap", body: gapText(item) }
    const line = payloadLine(item)
    const event = item.metadata?.event
    return {
      key, kind: "",
      body: html`<span class="seq">${segment === null ? html`<span class="m">${item.segment} </span>` : null}${number(item.sequence)}</span><span class="when">${clock(item.timestamp)}</span>${segment === null && html`<span class="seg">${item.segment}</span>`}<span class="pay">${event && html`<span class="kind">${event}</span>`}${line}</span>`,
    }
  }
  const columns = segment === null ? "88px 96px minmax(90px, 190px) minmax(0, 1fr)" : "88px 96px minmax(0, 1fr)"
  const filterId = "entries-filter"
  return html`
    <div class="tools" role="group" aria-label="What is shown">
      <form class="tools" onSubmit=${go}>
        <select class="in" aria-label="Start at" value=${kind} onChange=${event => setKind(event.target.value)}>
          <option value="end">Latest</option><option value="beginning">Beginning</option><option value="time">Time…</option>
          ${segment !== null && html`<option value="sequence">Sequence…</option>`}${segment === null && html`<option value="offset">Offset…</option>`}</select>
        ${needsValue && html`<input class="in" style=${{ width: "200px" }} aria-label=${kind === "time" ? "Time" : kind === "sequence" ? "Sequence" : "Offset"} type=${kind === "time" ? "datetime-local" : "text"} step="1" value=${text} onInput=${event => setText(event.target.value)} />`}
        <${Button} type="submit">Go<//></form>
      <input id=${filterId} class="in grow" style=${{ flex: "1 1 180px", width: "auto" }} type="search" aria-label="Filter" placeholder="Filter: words, status=paid, segment:order-4" value=${filter} onInput=${event => setFilter(event.target.value)} />
      <${Button} kind=${reading.live ? "" : ""} aria-pressed=${reading.live ? "true" : "false"} icon=${reading.live ? undefined : "play"} onClick=${() => { if (reading.live) { reading.stop(); reading.changed() } else { setStick(true); reading.follow() } }}>${reading.live ? "Stop" : "Live"}<//>
      <${Button} icon="copy" aria-expanded=${copies ? "true" : "false"} onClick=${() => setCopies(!copies)}>Copy as<//>
      <${Button} icon="plus" needs="write" onClick=${() => setAppends(true)}>Append<//>
    </div>
    ${copies && html`<${CopyAs} of=${recipes(store, space, segment, null)} />`}
    ${appends && html`<${Append} store=${store} space=${space} segment=${segment} onClose=${() => setAppends(false)} />`}
    ${reading.error && html`<${Failure} error=${reading.error} retry=${() => { reading.error = null; reading.items.length || reading.live ? reading.changed() : reading._start(start) }} />`}
    <div class=${chosen && open ? "split" : "split alone"} ref=${split} onKeyDown=${event => { if (event.key === "Escape" && open) { event.preventDefault(); close() } }}>
      <div class="list" style=${{ "--cols": columns }}>
        <div class="cols" aria-hidden="true"><span>Sequence</span><span>Time</span>${segment === null && html`<span>Segment</span>`}<span>Payload</span></div>
        ${items.length === 0 && !reading.live && shown.done && !reading.loading && !searching
          ? html`<div style=${{ flex: 1 }}>${shown.filtered ? html`<${Empty} icon="views" title="No entry matches the filter"><p>${plural(reading.items.length, "entry", "entries")} looked at.</p><//>`
            : html`<${EmptyPlace} store=${store} space=${space} segment=${segment} title="There are no entries here" command=${segment === null ? `echo '{"placed": 3}' | streamkit produce ${quote(space)} order-42 --store ${store}` : `echo '{"placed": 3}' | streamkit produce ${quote(space)} ${quote(segment)} --store ${store}`}><p>Append one, or press Live and wait.</p><//>`}</div>`
          : items.length === 0 && !reading.live ? html`<div style=${{ flex: 1 }}><${Skeleton} lines=${12} /></div>`
          : html`<${Rows} label=${segment === null ? `Entries of ${space}` : `Entries of ${segment}`} count=${items.length} row=${row} selected=${selected} shift=${shown.filtered ? 0 : reading.shift}
              onSelect=${at => choose(items[at])} onOpen=${() => { if (chosen) choose(chosen) }} stick=${stick && (reading.live || start.kind === "end")} onStick=${setStick}
              onStart=${() => { if (!stick || !reading.live) reading.loadEarlier() }} onEnd=${() => reading.loadLater()} />`}
        <div class="foot-line"><span>${shown.filtered ? `${plural(items.length, "match", "matches")} in ${number(reading.items.length)}` : plural(items.length, "entry", "entries")}</span>
          ${(reading.loading || searching) && html`<span role="status">${searching ? "searching…" : "loading…"}</span>`}
          ${reading.dropped > 0 && html`<span>${number(reading.dropped)} older ones left this list</span>`}
          <span class="grow"></span>
          ${reading.live && html`<span role="status"><${Badge} kind=${reading.state === "live" ? "good" : "warn"} dot pulse>${reading.state === "live" ? "live" : "connecting"}<//></span>`}
          ${reading.live && !stick && html`<${Button} kind="small" onClick=${() => setStick(true)}>Go to the end<//>`}
          ${reading.earlier && !reading.live && html`<${Button} kind="small ghost" onClick=${() => reading.loadEarlier()}>Earlier<//>`}
          ${reading.later && html`<${Button} kind="small ghost" onClick=${() => reading.loadLater()}>Later<//>`}</div>
      </div>
      ${chosen && open && html`<${Detail} store=${store} space=${space} item=${chosen} inSegment=${segment !== null} onClose=${close} />`}
    </div>`
}
