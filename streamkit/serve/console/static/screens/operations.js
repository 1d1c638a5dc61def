// Operations: maintain, verify, archive, compact; how far each is, and its result.

import { call, get, storePath } from "../api.js"
import { ago, duration, number, time } from "../format.js"
import { Badge, Button, Dialog, Empty, Field, Loaded, Page, Session, attempt, can, html, seesAll, useContext, useLoad, useState } from "../ui.js"

const KINDS = {
  maintain: "Maintain: remove expired entries, and bring the index forward",
  verify: "Verify: check every byte",
  archive: "Archive: move old entries to tables",
  compact: "Compact: fewer, larger files in the archive",
}
const STATES = { running: "info", done: "good", failed: "bad", lost: "warn" }

export function Operations({ store }) {
  const session = useContext(Session)
  const allowed = can(session, "admin") && !session.segments.length
  const found = useLoad(allowed ? signal => get(`${storePath(store)}/operations`, { limit: 30 }, signal) : null, [store], 1500)
  const spaces = useLoad(signal => get(`${storePath(store)}/spaces`, { limit: 1000 }, signal), [store])
  const [kind, setKind] = useState("verify")
  const [space, setSpace] = useState("")
  const [shown, setShown] = useState(null)
  const all = seesAll(session) && (kind === "maintain" || kind === "verify")
  const names = spaces.data ? spaces.data.spaces.map(each => each.name) : []
  const chosen = space || (all ? "" : names[0] || "")
  const start = async event => {
    event.preventDefault()
    await attempt(() => call("POST", `${storePath(store)}/operations`, { body: chosen ? { kind, space: chosen } : { kind } }), "The operation has begun")
    found.reload()
  }
  return html`<${Page} title="Operations"><form class="card" onSubmit=${start}><header><h2>Begin one</h2></header><div class="body"><div class="tools">
      <select class="in" aria-label="Operation" value=${kind} onChange=${event => setKind(event.target.value)}>${Object.entries(KINDS).map(([id, name]) => html`<option value=${id}>${name}</option>`)}</select>
      <select class="in" aria-label="Space" value=${chosen} onChange=${event => setSpace(event.target.value)}>${all && html`<option value="">All spaces</option>`}${names.map(name => html`<option value=${name}>${name}</option>`)}</select>
      <${Button} kind="primary" type="submit" needs="admin" icon="play">Begin<//></div></div></form>
    <div class="card"><header><h2>Latest</h2></header>${!allowed ? html`<${Empty} icon="operations" title="Operations need a key with the scope “admin”" command="streamkit keys create keys.json --scope admin" />` : html`<${Loaded} of=${found}>${({ operations }) => operations.length === 0 ? html`<${Empty} icon="operations" title="Nothing was begun here yet" command=${`streamkit verify --store ${store}`} />` : html`<div class="scroll" tabindex="0" role="region" aria-label="Operations"><table><thead><tr><th>Operation</th><th>Space</th><th>State</th><th>Progress</th><th class="wide">Begun</th><th class="num wide">Took</th><th><span class="sr">Result</span></th></tr></thead>
      <tbody>${operations.map(each => html`<tr key=${each.id}><td><strong>${each.kind}</strong></td><td>${each.space ?? "all"}</td><td><${Badge} kind=${STATES[each.state]} dot pulse=${each.state === "running"}>${each.state}<//></td><td style=${{ minWidth: "110px" }}>${each.of > 0 ? html`<progress max=${each.of} value=${each.done} aria-label=${`Progress of ${each.kind}`}></progress><span class="sub">${number(each.done)} of ${number(each.of)}</span>` : html`<span class="sub">–</span>`}</td><td class="when wide"><time title=${time(each.started)}>${ago(each.started)}</time></td><td class="num wide">${duration((each.updated - each.started) / 1000)}</td><td class="acts">${(each.result || each.error) && html`<${Button} kind="small" label=${`Result of ${each.kind}`} onClick=${() => setShown(each)}>Result<//>`}</td></tr>`)}</tbody></table></div>`}<//>`}</div>
    ${shown && html`<${Dialog} title=${`${shown.kind} of ${shown.space ?? "all spaces"}`} onClose=${() => setShown(null)}>${shown.error && html`<div class="note bad">${shown.error}</div>`}${shown.result !== null && html`<pre class="raw" tabindex="0" role="region" aria-label="Result">${JSON.stringify(shown.result, null, 2)}</pre>`}<div class="tools"><${Button} onClick=${() => setShown(null)}>Close<//></div><//>`}<//>`
}
