// A space: its segments, entries by time, its entries, groups, settings and removal.

import { call, get, segmentPath, spacePath, storePath } from "../api.js"
import { Activity } from "../chart.js"
import { ago, bytes, duration, number, plural, time } from "../format.js"
import { link } from "../router.js"
import { Legend, SpaceTable, Tiers } from "./overview.js"
import { EmptyPlace, Entries, startOf } from "./entries.js"
import { Group, Groups } from "./groups.js"
import { Remove } from "./remove.js"
import { Travel } from "./travel.js"
import { Badge, Button, Command, Dialog, Empty, Failure, Field, Loaded, Page, Session, Tile, attempt, html, seesAll, toast, useContext, useEffect, useLoad, useState } from "../ui.js"

export function Spaces({ store }) {
  const [creates, setCreates] = useState(false)
  return html`<${Page} title="Spaces" actions=${html`<${Button} icon="plus" needs="admin" onClick=${() => setCreates(true)}>New space<//>`}>
    <${SpaceTable} store=${store} />${creates && html`<${Create} store=${store} onClose=${() => setCreates(false)} />`}<//>`
}

function Create({ store, onClose }) {
  const [name, setName] = useState("")
  const [partitions, setPartitions] = useState("1")
  const [error, setError] = useState("")
  const submit = async event => {
    event.preventDefault()
    try {
      await call("PUT", spacePath(store, name), { body: { partitions: Number(partitions) } })
      onClose()
      location.hash = link(store, "spaces", name)
    } catch (refusal) { setError(refusal.message) }
  }
  return html`<${Dialog} title="New space" onClose=${onClose}><form onSubmit=${submit} style=${{ padding: 0 }}>
    <${Field} label="Name"><input class="in" required maxlength="255" value=${name} onInput=${event => setName(event.target.value)} /><//>
    <${Field} label="Partitions" hint="One is right for most. It cannot be changed later."><input class="in" type="number" min="1" max="1024" value=${partitions} onInput=${event => setPartitions(event.target.value)} /><//>
    ${error && html`<div class="note bad" role="alert">${error}</div>`}
    <div class="tools"><${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" type="submit">Create<//></div></form><//>`
}

export function Space({ store, parts, query }) {
  const session = useContext(Session)
  const [space, tab = "", name, sub] = parts
  const at = (...more) => link(store, "spaces", space, ...more)
  const crumbs = [["Spaces", link(store, "spaces")]]
  if (tab === "segments" && name) return html`<${Segment} key=${name} store=${store} space=${space} segment=${name} sub=${sub} query=${query} />`
  if (tab === "groups" && name) return html`<${Group} key=${name} store=${store} space=${space} group=${name} />`
  const tabs = [["", "Segments"], ["entries", "Entries"], ["groups", "Groups"], ["remove", "Trim and erase"], ["settings", "Settings"]]
    .filter(([id]) => !session.segments.length || id === "" || id === "settings")
    .map(([id, title]) => ({ name: title, href: id ? at(id) : at(), current: id === tab }))
  return html`<${Page} title=${space} crumbs=${crumbs} tabs=${tabs}>
    ${tab === "" && html`<${Segments} store=${store} space=${space} />`}
    ${tab === "entries" && html`<${Entries} key=${startOf(query)} store=${store} space=${space} query=${query} />`}
    ${tab === "groups" && html`<${Groups} store=${store} space=${space} />`}
    ${tab === "remove" && html`<${Remove} store=${store} space=${space} query=${query} />`}
    ${tab === "settings" && html`<${Settings} store=${store} space=${space} />`}<//>`
}

function Figures({ store, space }) {
  const size = useLoad(signal => get(`${spacePath(store, space)}/size`, {}, signal), [store, space], 10000)
  const activity = useLoad(signal => get(`${spacePath(store, space)}/activity`, { bars: innerWidth < 860 ? 40 : 90 }, signal), [store, space])
  const select = (from) => { location.hash = link(store, "spaces", space, "entries", { from: "time", at: from }) }
  return html`<${Loaded} of=${size} lines=${2}>${found => html`<dl class="tiles"><${Tile} name="Entries" value=${number(found.entries)} /><${Tile} name="Segments" value=${number(found.segments)} /><${Tile} name="Payload" value=${bytes(found.payload_bytes)} /><${Tile} name="Stored" value=${bytes(found.stored_bytes)}><${Tiers} tiers=${found.tiers} /><//></dl>`}<//>
    <div class="card"><header><h2>Entries by time</h2><span class="grow"></span>${activity.data && !activity.data.complete && html`<span class="sub">the latest 20,000</span>`}<${Button} kind="ghost small" icon="refresh" label="Read again" onClick=${activity.reload} /></header>
    <${Loaded} of=${activity}>${found => found.counts.some(Boolean) ? html`<${Activity} data=${found} onSelect=${select} />` : html`<${Empty} icon="overview" title="Nothing to draw yet" />`}<//></div>`
}

function Segments({ store, space }) {
  const session = useContext(Session)
  const [prefix, setPrefix] = useState("")
  const [pages, setPages] = useState([])
  const first = useLoad(signal => get(`${spacePath(store, space)}/segments`, { limit: 100, prefix }, signal), [store, space, prefix])
  useEffect(() => setPages([]), [prefix])
  const all = first.data ? [first.data, ...pages] : []
  const segments = all.flatMap(page => page.segments)
  const next = all.at(-1)?.next
  const more = () => attempt(async () => {
    const page = await get(`${spacePath(store, space)}/segments`, { limit: 500, prefix, after: next })
    setPages(was => [...was, page])
  })
  return html`${!session.segments.length && html`<${Figures} store=${store} space=${space} />`}
    <div class="card"><header><h2>Segments</h2><span class="grow"></span><input class="in" style=${{ maxWidth: "240px" }} type="search" placeholder="Begins with…" aria-label="Show segments that begin with" value=${prefix} onInput=${event => setPrefix(event.target.value)} /></header>
    <${Loaded} of=${first}>${() => segments.length === 0
      ? prefix ? html`<${Empty} title="No segment begins so"><p>Names are compared letter by letter, with capitals.</p><//>` : html`<${EmptyPlace} store=${store} space=${space} title="The space is empty" command=${`echo '{"placed": 3}' | streamkit produce '${space.replaceAll("'", "'\\''")}' order-42 --store ${store}`} />`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Segments"><table><thead><tr><th>Name</th><th class="num">First</th><th class="num">Last</th><th class="wide">First written</th><th>Last written</th></tr></thead>
        <tbody>${segments.map(each => html`<tr key=${each.segment}><td><a class="name" href=${link(store, "spaces", space, "segments", each.segment)}>${each.segment}</a></td><td class="num">${each.first_sequence ? number(each.first_sequence) : "–"}</td><td class="num">${number(each.last_sequence)}</td><td class="when wide">${time(each.first_timestamp)}</td><td class="when"><time title=${time(each.last_timestamp)}>${ago(each.last_timestamp)}</time></td></tr>`)}</tbody></table></div>
        ${next && html`<footer>${plural(segments.length, "segment")} shown <${Button} kind="small" onClick=${more}>Show more<//></footer>`}`}<//></div>`
}

function Segment({ store, space, segment, sub, query }) {
  const at = (...more) => link(store, "spaces", space, "segments", segment, ...more)
  const tabs = [["", "Entries"], ["travel", "Time travel"]].map(([id, name]) => ({ name, href: id ? at(id) : at(), current: (sub || "") === id }))
  const crumbs = [["Spaces", link(store, "spaces")], [space, link(store, "spaces", space)]]
  return html`<${Page} title=${segment} crumbs=${crumbs} tabs=${tabs}>
    ${sub === "travel" ? html`<${Travel} store=${store} space=${space} segment=${segment} at=${Number(query.get("at")) || 0} />` : html`<${Entries} key=${startOf(query)} store=${store} space=${space} segment=${segment} query=${query} />`}<//>`
}

function Settings({ store, space }) {
  const session = useContext(Session)
  const found = useLoad(signal => get(spacePath(store, space), {}, signal), [store, space])
  const [edits, setEdits] = useState(false)
  return html`<div class="card"><header><h2>Settings</h2><span class="grow"></span><${Button} kind="small" needs="admin" onClick=${() => setEdits(true)}>Change retention<//></header>
    <${Loaded} of=${found}>${settings => {
      const retention = settings.retention || {}
      return html`<div class="body"><dl class="facts">
        <dt>Partitions</dt><dd>${number(settings.partitions)}</dd><dt>Durability</dt><dd>${settings.durability}</dd>
        <dt>Idempotency keys hold</dt><dd>${duration(settings.idempotency_window)}</dd><dt>Archived entries stay in the log</dt><dd>${duration(settings.archive_grace)}</dd>
        <dt>Longest age</dt><dd>${retention.max_age ? duration(retention.max_age) : "no bound"}</dd><dt>Most entries</dt><dd>${retention.max_entries ? number(retention.max_entries) : "no bound"}</dd><dt>Most bytes</dt><dd>${retention.max_bytes ? bytes(retention.max_bytes) : "no bound"}</dd>
        <dt>Bounds are per</dt><dd>${retention.per || "segment"}</dd><dt>When full</dt><dd>${retention.when_full === "reject" ? "writes are refused" : "the oldest entries go"}</dd></dl></div>
        ${edits && html`<${Retention} store=${store} space=${space} retention=${retention} onClose=${changed => { setEdits(false); if (changed) found.reload() }} />`}`
    }}<//></div>`
}

function Retention({ store, space, retention, onClose }) {
  const [given, setGiven] = useState({ max_age: retention.max_age ?? "", max_entries: retention.max_entries ?? "", max_bytes: retention.max_bytes ?? "", per: retention.per || "segment", when_full: retention.when_full || "drop_oldest" })
  const [error, setError] = useState("")
  const set = name => event => setGiven({ ...given, [name]: event.target.value })
  const bound = value => value === "" ? null : Number(value)
  const submit = async event => {
    event.preventDefault()
    try {
      await call("PATCH", spacePath(store, space), { body: { max_age: bound(given.max_age), max_entries: bound(given.max_entries), max_bytes: bound(given.max_bytes), per: given.per, when_full: given.when_full } })
      toast("The retention is changed")
      onClose(true)
    } catch (refusal) { setError(refusal.message) }
  }
  return html`<${Dialog} title="Retention" onClose=${() => onClose(false)}><form onSubmit=${submit} style=${{ padding: 0 }}>
    <div class="note warn">A bound hides older entries at once, and upkeep removes them from storage.</div>
    <${Field} label="Longest age in seconds"><input class="in" type="number" min="0" step="any" placeholder="no bound" value=${given.max_age} onInput=${set("max_age")} /><//>
    <${Field} label="Most entries"><input class="in" type="number" min="1" placeholder="no bound" value=${given.max_entries} onInput=${set("max_entries")} /><//>
    <${Field} label="Most bytes"><input class="in" type="number" min="1" placeholder="no bound" value=${given.max_bytes} onInput=${set("max_bytes")} /><//>
    <div class="tools" style=${{ justifyContent: "start" }}><${Field} label="Bounds are per"><select class="in" value=${given.per} onChange=${set("per")}><option value="segment">segment</option><option value="space">space</option></select><//>
    <${Field} label="When full"><select class="in" value=${given.when_full} onChange=${set("when_full")}><option value="drop_oldest">drop the oldest</option><option value="reject">refuse writes</option></select><//></div>
    ${error && html`<div class="note bad" role="alert">${error}</div>`}
    <div class="tools"><${Button} onClick=${() => onClose(false)}>Cancel<//><${Button} kind="primary" type="submit">Change<//></div></form><//>`
}
