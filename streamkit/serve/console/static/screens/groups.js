// Groups and queues: lag, consumers and their entries, dead letters, redrive and seek.

import { call, enc, get, spacePath, storePath } from "../api.js"
import { ago, binarySize, duration, fine, number, plural, short, time, verb } from "../format.js"
import { link } from "../router.js"
import { Badge, Button, Copy, Dialog, Empty, Failure, Field, Fragment, Loaded, Page, Session, Tile, attempt, can, html, toast, useContext, useEffect, useLoad, useRef, useState } from "../ui.js"

const EVERY = 3000
/** Groups of a list that are shown, and how many more at a time; each costs a request. */
const SHOWN = 100
const MOST = 1000
const DEAD = 200
const PENDING = 50
const path = (store, space, group) => group === null ? `${storePath(store)}/queues/${enc(space)}` : `${spacePath(store, space)}/groups/${enc(group)}`
const snippet = entry => (entry.json !== undefined ? JSON.stringify(entry.json) : entry.text ?? plural(binarySize(entry.base64 || ""), "byte")).slice(0, 400)

export function Health({ of }) {
  if (of.lag === undefined) return html`<${Badge}>unknown<//>`
  if (of.dead) return html`<${Badge} kind="bad" dot>${plural(of.dead, "dead letter")}<//>`
  if (of.lag === 0) return html`<${Badge} kind="good" dot>done<//>`
  return of.consumers.length ? html`<${Badge} kind="info" dot>working<//>` : html`<${Badge} kind="warn" dot>no consumer<//>`
}

function Table({ store, listed, base, hrefOf, what, command }) {
  const most = useRef(SHOWN)
  const rows = useLoad(async signal => {
    const { groups, next } = await get(listed, { limit: most.current }, signal)
    return { groups: await Promise.all(groups.map(each => get(base(each.name), {}, signal).catch(() => ({ name: each.name, settings: {}, consumers: [] })))), next }
  }, [listed], EVERY)
  const more = () => { most.current = Math.min(most.current + SHOWN, MOST); rows.reload() }
  return html`<div class="card"><${Loaded} of=${rows}>${({ groups, next }) => groups.length === 0
    ? html`<${Empty} icon="queues" title=${what === "queue" ? "This store has no queues" : "Nobody consumes this space in a group"} command=${command} />`
    : html`<div class="scroll" tabindex="0" role="region" aria-label=${what === "queue" ? "Queues" : "Groups"}><table><thead><tr><th>Name</th><th>State</th><th class="num">Lag</th><th class="num">Pending</th><th class="num wide">Ready</th><th class="num wide">Delayed</th><th class="num">Dead</th><th class="num wide">Consumers</th></tr></thead>
      <tbody>${groups.map(each => html`<tr key=${each.name}><td><a class="name" href=${hrefOf(each.name)}>${each.name}</a></td><td><${Health} of=${each} /></td><td class="num">${number(each.lag)}</td><td class="num">${number(each.pending)}</td><td class="num wide">${number(each.ready)}</td><td class="num wide">${number(each.delayed)}</td><td class="num">${number(each.dead)}</td><td class="num wide">${number(each.consumers.length)}</td></tr>`)}</tbody></table></div>
      ${next && html`<footer>${plural(groups.length, what)} shown, and there are more ${groups.length < MOST && html`<${Button} kind="small" onClick=${more}>Show more<//>`}</footer>`}`}<//></div>`
}

export function Groups({ store, space }) {
  return html`<${Table} store=${store} what="group" listed=${`${spacePath(store, space)}/groups`} base=${name => path(store, space, name)} hrefOf=${name => link(store, "spaces", space, "groups", name)}
    command=${`curl -X PUT http://…/${spacePath(store, space)}/groups/billing`} />`
}

export function Queues({ store, parts }) {
  if (parts.length) return html`<${Group} key=${parts[0]} store=${store} space=${parts[0]} group=${null} />`
  return html`<${Page} title="Queues"><${Table} store=${store} what="queue" listed=${`${storePath(store)}/queues`} base=${name => path(store, name, null)} hrefOf=${name => link(store, "queues", name)}
    command=${`streamkit queue put emails '{"to": "a@example.org"}' --store ${store}`} /><//>`
}

export function Group({ store, space, group }) {
  const session = useContext(Session)
  const base = path(store, space, group)
  const [asks, setAsks] = useState("")
  const found = useLoad(signal => get(base, {}, signal), [base], EVERY)
  const title = group ?? space
  const crumbs = group === null ? [["Queues", link(store, "queues")]] : [["Spaces", link(store, "spaces")], [space, link(store, "spaces", space)], ["Groups", link(store, "spaces", space, "groups")]]
  const stamp = found.data ? `${found.data.pending} ${found.data.dead} ${found.data.acked}` : ""
  return html`<${Page} title=${title} crumbs=${crumbs} badge=${found.data && html`<${Health} of=${found.data} />`}
    actions=${html`${group === null && html`<a class="btn" href=${link(store, "spaces", space, "entries")}>Entries</a>`}${group !== null && html`<${Button} needs="write" onClick=${() => setAsks("seek")}>Seek…<//>`}<${Button} needs="delete" onClick=${() => setAsks("delete")}>Delete…<//>`}>
    <${Loaded} of=${found} lines=${3}>${of => html`
      <dl class="tiles"><${Tile} name="Lag" value=${short(of.lag)} more="not done yet" /><${Tile} name="Unread" value=${short(of.unread)} more="never delivered" /><${Tile} name="Pending" value=${short(of.pending)} more="with a consumer" /><${Tile} name="Ready" value=${short(of.ready)} more="to be delivered again" /><${Tile} name="Delayed" value=${short(of.delayed)} more="later" /><${Tile} name="Dead letters" value=${short(of.dead)} kind=${of.dead ? "bad" : ""} more=${`after ${plural(of.settings.max_deliveries, "delivery", "deliveries")}`} /><${Tile} name="Done" value=${short(of.acked)} /></dl>
      ${of.gaps.length > 0 && html`<div class="note warn"><strong>${plural(of.gaps.length, "gap")}: entries were removed before they were acknowledged</strong>${of.gaps.slice(0, 10).map(gap => html`<div>${gap.segment || `partition ${gap.partition}`}: ${number(gap.first_sequence)}–${number(gap.last_sequence)} ${gap.reason}</div>`)}</div>`}
      <${Dead} store=${store} space=${space} base=${base} dead=${of.dead} stamp=${stamp} onChange=${found.reload} />
      <div class="two"><${Pending} store=${store} space=${space} base=${base} stamp=${stamp} consumers=${of.consumers} />
      <div class="card"><header><h2>Settings</h2></header><div class="body"><dl class="facts"><dt>Mode</dt><dd>${of.settings.mode || "shared"}</dd><dt>Time to acknowledge</dt><dd>${duration(of.settings.ack_timeout)}</dd><dt>Deliveries at most</dt><dd>${number(of.settings.max_deliveries)}</dd><dt>First pause before a retry</dt><dd>${duration(of.settings.retry_delay)}</dd><dt>Pending at most</dt><dd>${number(of.settings.max_pending)}</dd>${of.acked_to && html`<dt>Done up to</dt><dd class="mono">${of.acked_to} <${Copy} text=${of.acked_to} label="Copy the offset" /></dd>`}</dl></div></div></div>`}<//>
    ${asks === "seek" && html`<${Seek} base=${base} onClose=${changed => { setAsks(""); if (changed) found.reload() }} />`}
    ${asks === "delete" && html`<${Dialog} title=${`Delete ${title}?`} onClose=${() => setAsks("")}><p>${group === null ? "The queue and its jobs are deleted. This cannot be undone." : "The group forgets its position and its dead letters. The entries stay."}</p>
      <div class="tools"><${Button} onClick=${() => setAsks("")}>Cancel<//><${Button} kind="danger" needs="delete" onClick=${async () => {
        const done = await attempt(() => call("DELETE", base), "It is deleted")
        setAsks("")
        if (done !== undefined) location.hash = group === null ? link(store, "queues") : link(store, "spaces", space, "groups")
      }}>Delete<//></div><//>`}<//>`
}

function Seek({ base, onClose }) {
  const [to, setTo] = useState("beginning")
  const [offset, setOffset] = useState("")
  const [error, setError] = useState("")
  const submit = async event => {
    event.preventDefault()
    try {
      await call("POST", `${base}/seek`, { body: { to: to === "offset" ? offset.trim() : to } })
      toast("The group continues from there")
      onClose(true)
    } catch (refusal) { setError(refusal.message) }
  }
  return html`<${Dialog} title="Seek" onClose=${() => onClose(false)}><form onSubmit=${submit} style=${{ padding: 0 }}><p>Consumers continue from the chosen place. From an earlier one, entries are delivered again.</p>
    <div class="checks" role="radiogroup" aria-label="Place">${[["beginning", "Beginning"], ["end", "End"], ["offset", "An offset"]].map(([id, name]) => html`<label><input type="radio" name="to" checked=${to === id} onChange=${() => setTo(id)} />${name}</label>`)}</div>
    ${to === "offset" && html`<${Field} label="Offset"><input class="in mono" required pattern="[0-9a-f]+" value=${offset} onInput=${event => setOffset(event.target.value)} /><//>`}
    ${error && html`<div class="note bad" role="alert">${error}</div>`}
    <div class="tools"><${Button} onClick=${() => onClose(false)}>Cancel<//><${Button} kind="primary" type="submit" needs="write">Seek<//></div></form><//>`
}

function Dead({ store, space, base, dead, stamp, onChange }) {
  const found = useLoad(signal => get(`${base}/dead`, { limit: DEAD }, signal), [base, stamp])
  const [chosen, setChosen] = useState(new Set())
  const [asks, setAsks] = useState(false)
  const letters = found.data ? found.data.dead : []
  const ids = letters.filter(letter => chosen.has(letter.id)).map(letter => letter.id)
  const redrive = async all => {
    const done = await attempt(() => call("POST", `${base}/redrive`, { body: { ids: all ? null : ids } }), answer => `${plural(answer.redriven, "entry", "entries")} will be delivered again`)
    if (done !== undefined) { setChosen(new Set()); onChange(); found.reload() }
  }
  const toggle = id => { const next = new Set(chosen); next.has(id) ? next.delete(id) : next.add(id); setChosen(next) }
  return html`<div class="card"><header><h2>Dead letters</h2>${dead > 0 && html`<${Badge} kind="bad">${number(dead)}<//>`}<span class="grow"></span>
    ${letters.length > 0 && html`<${Button} kind="small primary" needs="write" disabled=${!ids.length} onClick=${() => redrive(false)}>Redrive ${ids.length || ""} chosen<//><${Button} kind="small" needs="write" onClick=${() => setAsks(true)}>Redrive all…<//>`}</header>
    <${Loaded} of=${found} lines=${2}>${() => letters.length === 0 ? html`<${Empty} icon="check" title="There are no dead letters" />` : html`<div class="scroll" tabindex="0" role="region" aria-label="Dead letters"><table><thead><tr><th><span class="sr">Choose</span></th><th>Entry</th><th>Reason</th><th class="num">Attempts</th><th class="wide">Since</th><th class="wide">Payload</th></tr></thead>
      <tbody>${letters.map(letter => html`<tr key=${letter.id}><td><input type="checkbox" aria-label=${`Choose ${letter.entry.segment} ${letter.entry.sequence}`} checked=${chosen.has(letter.id)} onChange=${() => toggle(letter.id)} /></td>
        <td><a href=${link(store, "spaces", space, "segments", letter.entry.segment, { from: "sequence", at: letter.entry.sequence, entry: letter.entry.sequence })}>${letter.entry.segment} #${number(letter.entry.sequence)}</a></td><td>${letter.reason}</td><td class="num">${number(letter.attempt)}</td><td class="when wide">${ago(letter.timestamp)}</td><td class="wide"><div class="clip mono">${snippet(letter.entry)}</div></td></tr>`)}</tbody></table></div>
      ${dead > letters.length && html`<footer>The first ${number(letters.length)} of ${plural(dead, "dead letter")}. Redrive them to see the others.</footer>`}`}<//>
    ${asks && html`<${Dialog} title="Deliver all dead letters again?" onClose=${() => setAsks(false)}><p>${plural(dead, "entry", "entries")} will be delivered to consumers again, with new attempts.</p><div class="tools"><${Button} onClick=${() => setAsks(false)}>Cancel<//><${Button} kind="primary" needs="write" onClick=${async () => { setAsks(false); await redrive(true) }}>Redrive them<//></div><//>`}</div>`
}

function Pending({ store, space, base, stamp, consumers }) {
  const found = useLoad(signal => get(`${base}/pending`, { limit: PENDING }, signal), [base, stamp])
  return html`<div class="card"><header><h2>With consumers</h2><span class="grow"></span><span class="sub">${plural(consumers.length, "consumer")}</span></header>
    <${Loaded} of=${found} lines=${2}>${({ pending }) => pending.length === 0 ? html`<${Empty} icon="queues" title="Nobody works on an entry" />` : html`<div class="scroll" tabindex="0" role="region" aria-label="Pending entries"><table><thead><tr><th>Entry</th><th>Consumer</th><th class="num">Attempt</th><th>Until</th></tr></thead>
      <tbody>${pending.map(each => html`<tr><td><a href=${link(store, "spaces", space, "segments", each.entry.segment, { from: "sequence", at: each.entry.sequence, entry: each.entry.sequence })}>${each.entry.segment} #${number(each.entry.sequence)}</a></td><td>${each.consumer}</td><td class="num">${number(each.attempt)}</td><td class="when">${ago(each.deadline)}</td></tr>`)}</tbody></table></div>
      ${pending.length === PENDING && html`<footer>${plural(PENDING, "entry", "entries")} shown; there may be more.</footer>`}`}<//></div>`
}
