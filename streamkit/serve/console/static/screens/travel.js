// Time travel: the state of an aggregate after each entry of its segment.

import { get, segmentPath } from "../api.js"
import { differences, step } from "../fold.js"
import { binarySize, cut, fine, number, plural, time } from "../format.js"
import { Tree } from "../json.js"
import { link } from "../router.js"
import { Button, Copy, Empty, Field, Fragment, Loaded, html, useEffect, useLoad, useMemo, useRef, useState } from "../ui.js"

const MOST = 5000
const EVERY = 50
const MODES = { auto: "Merge each entry (patches are applied)", patch: "JSON Patch (RFC 6902)", last: "The entry alone is the state" }

async function load(store, space, segment, signal) {
  const found = []
  let after
  while (found.length < MOST) {
    const page = await get(`${segmentPath(store, space, segment)}/entries`, { limit: 1000, ...(after ? { after } : { from: "beginning" }) }, signal)
    found.push(...page.entries)
    if (page.caught_up) return { items: found, complete: true }
    after = page.next
  }
  return { items: found, complete: false }
}

/** States at every 50th entry; the others are folded from there when they are looked at. */
class States {
  constructor(entries, mode) {
    this.entries = entries
    this.mode = mode
    this.kept = [{ state: undefined, errors: 0 }]
  }

  _forward(state, at) {
    try { return { state: step(state, this.entries[at], this.mode), error: null } } catch (error) { return { state, error: error.message } }
  }

  /** After `count` entries. */
  after(count) {
    let base = Math.min(Math.floor(count / EVERY), this.kept.length - 1)
    let state = this.kept[base].state
    let error = null
    for (let at = base * EVERY; at < count; at += 1) {
      ({ state, error } = this._forward(state, at))
      if ((at + 1) % EVERY === 0 && (at + 1) / EVERY === this.kept.length) this.kept.push({ state })
    }
    return { state, error }
  }
}

const shown = value => value === undefined ? "nothing" : cut(JSON.stringify(value), 2000)

export function Travel({ store, space, segment, at }) {
  const found = useLoad(signal => load(store, space, segment, signal), [store, space, segment])
  return html`<${Loaded} of=${found} lines=${8}>${data => {
    const entries = data.items.filter(item => item.gap === undefined)
    const gaps = data.items.length - entries.length
    return entries.length === 0 ? html`<div class="card"><${Empty} title="The segment has no entries to travel through" /></div>`
      : html`<${Steps} key=${segment} store=${store} space=${space} segment=${segment} entries=${entries} gaps=${gaps} complete=${data.complete} at=${at} />`
  }}<//>`
}

function Steps({ store, space, segment, entries, gaps, complete, at }) {
  const first = Math.max(entries.findIndex(entry => entry.sequence === at), -1)
  const [chosen, setChosen] = useState(first >= 0 ? first : entries.length - 1)
  const [mode, setMode] = useState("auto")
  const [plays, setPlays] = useState(false)
  const states = useMemo(() => new States(entries, mode), [entries, mode])
  const before = states.after(chosen)
  const now = states.after(chosen + 1)
  const changes = differences(before.state, now.state)
  const marked = new Set(changes.map(([path]) => path))
  const entry = entries[chosen]
  const list = useRef(null)
  useEffect(() => { 
    const row = list.current?.querySelector("[aria-current]")?.parentElement
    if (row && (row.offsetTop < list.current.scrollTop || row.offsetTop + row.offsetHeight > list.current.scrollTop + list.current.clientHeight)) list.current.scrollTop = row.offsetTop - list.current.clientHeight / 2
  }, [chosen])
  useEffect(() => {
    if (!plays) return undefined
    const timer = setInterval(() => setChosen(was => { if (was + 1 >= entries.length) { setPlays(false); return was } return was + 1 }), 700)
    return () => clearInterval(timer)
  }, [plays, entries])
  const move = by => setChosen(was => Math.min(Math.max(was + by, 0), entries.length - 1))
  const from = Math.max(Math.min(chosen - 100, entries.length - 201), 0)
  const window_ = entries.slice(from, from + 201)
  return html`
    ${gaps > 0 && html`<div class="note warn">${plural(gaps, "gap")}: entries of this segment were removed, so the state is folded from the ones that are left.</div>`}
    ${!complete && html`<div class="note warn">Only the first ${number(entries.length)} entries are folded.</div>`}
    <div class="card"><div class="body"><div class="slider"><span class="tools"><${Button} kind="square" icon="back" label="One entry back" disabled=${chosen === 0} onClick=${() => move(-1)} /><${Button} kind="square" icon=${plays ? "close" : "play"} label=${plays ? "Stop" : "Play"} onClick=${() => { if (!plays && chosen === entries.length - 1) setChosen(0); setPlays(!plays) }} /><${Button} kind="square" icon="next" label="One entry on" disabled=${chosen === entries.length - 1} onClick=${() => move(1)} /></span>
      <input type="range" min="0" max=${entries.length - 1} value=${chosen} aria-label="Entry" aria-valuetext=${`Entry ${entry.sequence}, ${time(entry.timestamp)}`} onInput=${event => setChosen(Number(event.target.value))} />
      <span><strong>#${number(entry.sequence)}</strong> <span class="sub">of ${number(entries.at(-1).sequence)}</span></span></div>
      <div class="tools"><span class="sub">${fine(entry.timestamp)}</span>${entry.metadata?.event && html`<strong>${entry.metadata.event}</strong>`}<span class="grow"></span>
        <label class="check"><span class="sub">How the state is made</span><select class="in" value=${mode} onChange=${event => setMode(event.target.value)}>${Object.entries(MODES).map(([id, name]) => html`<option value=${id}>${name}</option>`)}</select></label></div></div></div>
    <div class="two"><div class="card"><header><h2>State after entry ${number(entry.sequence)}</h2><span class="grow"></span><${Copy} text=${() => JSON.stringify(now.state, null, 2)} label="Copy the state" /></header>
        <div class="body">${now.error && html`<div class="note bad" role="alert">This entry does not apply: ${now.error}</div>`}<${Tree} key=${`${mode} ${chosen}`} value=${now.state ?? null} changed=${marked} label="State" /></div></div>
      <div class="card"><header><h2>Changed by it</h2><span class="grow"></span><a class="sub" href=${link(store, "spaces", space, "segments", segment, { from: "sequence", at: entry.sequence, entry: entry.sequence })}>The entry</a></header><div class="body">${changes.length === 0 ? html`<p class="sub">Nothing.</p>` : html`<ul class="diff">${changes.slice(0, 60).map(([path, was, is]) => html`<li>${path || "/"} ${was !== undefined && html`<del>− ${shown(was)}</del> `}${is !== undefined && html`<ins>+ ${shown(is)}</ins>`}</li>`)}${changes.length > 60 && html`<li class="sub">and ${number(changes.length - 60)} more</li>`}</ul>`}</div>
        <header style=${{ borderTop: "1px solid var(--line)" }}><h2>Entries</h2><span class="grow"></span><span class="sub">${number(from + 1)}–${number(from + window_.length)} of ${number(entries.length)}</span></header>
        <ol class="steps" ref=${list}>${window_.map((each, number_) => html`<li key=${each.sequence}><button type="button" aria-current=${from + number_ === chosen ? "step" : null} onClick=${() => setChosen(from + number_)}><span class="seq">${number(each.sequence)}</span><span class="clip">${each.metadata?.event || (each.json !== undefined ? JSON.stringify(each.json) : each.text ?? plural(binarySize(each.base64 || ""), "byte")).slice(0, 120)}</span><time>${time(each.timestamp)}</time></button></li>`)}</ol></div></div>`
}
