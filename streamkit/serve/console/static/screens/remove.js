// Trim and erase. A dry run comes first, and the change is allowed only as it was tried.

import { call, spacePath } from "../api.js"
import { bytes, number, plural } from "../format.js"
import { Button, Dialog, Field, html, toast, useState } from "../ui.js"

const BOUNDS = [["keep_entries", "Keep the last entries", "number"], ["max_age", "Keep entries younger than, in seconds", "number"], ["keep_bytes", "Keep the last bytes", "number"], ["before", "Remove entries before", "text"]]

export function Remove({ store, space, query }) {
  const [kind, setKind] = useState(query.get("kind") || "trim")
  return html`<div class="checks" role="radiogroup" aria-label="What to do"><label><input type="radio" name="kind" checked=${kind === "trim"} onChange=${() => setKind("trim")} />Trim: remove the oldest</label><label><input type="radio" name="kind" checked=${kind === "erase"} onChange=${() => setKind("erase")} />Erase: remove these entries for ever</label></div>
    ${kind === "trim" ? html`<${Trim} key="trim" store=${store} space=${space} />` : html`<${Erase} key="erase" store=${store} space=${space} />`}`
}

/** The form, the report of its dry run, and the change itself. */
function Form({ store, space, path, title, body, children, facts, consequence }) {
  const [report, setReport] = useState(null)
  const [error, setError] = useState("")
  const [busy, setBusy] = useState(false)
  const [confirms, setConfirms] = useState(false)
  const [typed, setTyped] = useState("")
  let wanted = null
  let problem = ""
  try { wanted = body() } catch (wrong) { problem = wrong.message }
  const key = wanted && JSON.stringify(wanted)
  const tried = report && report.key === key
  const run = async dry => {
    if (problem) { setError(problem); return }
    setBusy(true)
    setError("")
    try {
      const found = await call("POST", `${spacePath(store, space)}/${path}`, { body: { ...wanted, dry_run: dry } })
      setReport({ key: dry ? key : "", found, done: !dry })
      if (!dry) toast(`${plural(found.entries, "entry", "entries")} removed`)
    } catch (refusal) { setError(refusal.message) }
    setBusy(false)
    setConfirms(false)
    setTyped("")
  }
  return html`<div class="two"><form class="card" onSubmit=${event => { event.preventDefault(); run(true) }}><header><h2>${title}</h2></header><div class="body">${children}
      ${error && html`<div class="note bad" role="alert">${error}</div>`}
      <div class="tools"><${Button} kind="primary" type="submit" needs="delete" disabled=${busy}>${busy ? "Working…" : "Dry run"}<//>
      <${Button} kind="danger" needs="delete" disabled=${!tried || busy || report.found.entries + (report.found.hidden || 0) === 0} onClick=${() => setConfirms(true)}>${title}…<//></div>
      <p class="sub">${tried ? "The dry run changed nothing." : "A dry run shows what would be removed. It changes nothing."}</p></div></form>
    <div class="card" aria-live="polite"><header><h2>${!report ? "Report" : report.done ? "Removed" : tried ? "Would be removed" : "Of an earlier form"}</h2></header>
      <div class="body">${report ? html`<dl class="facts">${facts(report.found).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>${report.done && html`<div class="note good">Readers do not get these entries any more.</div>`}` : html`<p class="sub">The report of the dry run appears here.</p>`}</div></div></div>
    ${confirms && html`<${Dialog} title=${`${title} ${plural(report.found.entries, "entry", "entries")} of ${space}?`} onClose=${() => setConfirms(false)}><p>${consequence}</p>
      <${Field} label=${`Type the name of the space, ${space}`}><input class="in" value=${typed} onInput=${event => setTyped(event.target.value)} autocomplete="off" /><//>
      <div class="tools"><${Button} onClick=${() => setConfirms(false)}>Cancel<//><${Button} kind="danger" needs="delete" disabled=${typed !== space || busy} onClick=${() => run(false)}>${title}<//></div><//>`}`
}

function Trim({ store, space }) {
  const [segment, setSegment] = useState("")
  const [bound, setBound] = useState("keep_entries")
  const [value, setValue] = useState("")
  const body = () => {
    if (value === "") throw new Error("Give a number to trim by")
    const found = {}
    if (segment) found.segment = segment
    found[bound] = bound === "before" && !segment ? value : Number(value)
    if (typeof found[bound] === "number" && !Number.isFinite(found[bound])) throw new Error("This is not a number")
    return found
  }
  return html`<${Form} store=${store} space=${space} path="trim" title="Trim" body=${body} consequence="Trimmed entries are not readable any more, and their storage is freed. Readers see a gap in their place."
    facts=${found => [["Entries", number(found.entries)], ["Payload", bytes(found.bytes)], ...(found.segment ? [["First sequence after it", number(found.first_sequence)]] : [["Transactions", number(found.transactions)]])]}>
    <${Field} label="Segment" hint="Leave it empty to trim the whole space"><input class="in" value=${segment} onInput=${event => setSegment(event.target.value)} /><//>
    <${Field} label="By"><select class="in" value=${bound} onChange=${event => setBound(event.target.value)}>${BOUNDS.map(([id, name]) => html`<option value=${id}>${name}</option>`)}</select><//>
    <${Field} label=${bound === "before" ? (segment ? "Sequence" : "Offset") : "Number"}><input class="in" name="bound" inputmode=${bound === "before" && !segment ? "text" : "decimal"} value=${value} onInput=${event => setValue(event.target.value.trim())} /><//><//>`
}

function Erase({ store, space }) {
  const [segment, setSegment] = useState("")
  const [first, setFirst] = useState("")
  const [last, setLast] = useState("")
  const [pairs, setPairs] = useState("")
  const body = () => {
    const found = {}
    if (segment) found.segment = segment
    if (first) found.first = Number(first)
    if (last) found.last = Number(last)
    const metadata = {}
    for (const line of pairs.split("\n").filter(text => text.trim())) {
      const at = line.indexOf("=")
      if (at < 1) throw new Error("Write metadata as name=value, one on each line")
      metadata[line.slice(0, at).trim()] = line.slice(at + 1).trim()
    }
    if (Object.keys(metadata).length) found.metadata = metadata
    if (!found.segment && !found.metadata) throw new Error("Name segments or metadata: erasing everything is not done here")
    return found
  }
  return html`<${Form} store=${store} space=${space} path="erase" title="Erase" body=${body} consequence="The bytes are removed from log, index, archive, snapshots and published views. This cannot be undone."
    facts=${found => [["Entries", number(found.entries)], ["Payload", bytes(found.bytes)], ["Segments", number(found.segments)], ["Transactions", number(found.transactions)], ["Hidden before, erased too", number(found.hidden || 0)], ["Entries looked at", number(found.searched || 0)]]}>
    <${Field} label="Segments" hint="A name, or a pattern such as user-17/*"><input class="in" name="segment" value=${segment} onInput=${event => setSegment(event.target.value)} /><//>
    <${Field} label="With this metadata" hint="name=value, one on each line; all of them must match"><textarea class="in" rows="2" value=${pairs} onInput=${event => setPairs(event.target.value)}></textarea><//>
    <div class="tools"><${Field} label="From sequence"><input class="in" inputmode="numeric" pattern="[0-9]*" value=${first} onInput=${event => setFirst(event.target.value)} /><//><${Field} label="To sequence"><input class="in" inputmode="numeric" pattern="[0-9]*" value=${last} onInput=${event => setLast(event.target.value)} /><//></div><//>`
}
