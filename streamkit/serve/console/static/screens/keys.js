// Keys: what each allows, a new one, and the end of one.

import { call, enc, get } from "../api.js"
import { ago, number, time } from "../format.js"
import { Badge, Button, Command, Dialog, Empty, Failure, Field, Loaded, Page, Session, attempt, html, seesAll, useContext, useLoad, useState } from "../ui.js"

const SCOPES = ["read", "write", "delete", "admin"]
const LIVES = { "": "For ever", 3600: "An hour", 86400: "A day", 2592000: "30 days", 31536000: "A year" }

export function Keys() {
  const session = useContext(Session)
  const allowed = seesAll(session) && !session.stores.length && !session.open
  const found = useLoad(allowed ? signal => get("v1/keys", {}, signal) : null, [allowed])
  const [creates, setCreates] = useState(false)
  const [revokes, setRevokes] = useState(null)
  if (session.open) return html`<${Page} title="Keys"><div class="card"><${Empty} icon="keys" title="This server has no keys, and listens on this machine only" command=${"streamkit keys create keys.json --scope admin\nstreamkit serve --keys keys.json"} /></div><//>`
  if (!allowed) return html`<${Page} title="Keys"><div class="card"><${Empty} icon="keys" title="Only a key for the whole server manages keys" /></div><//>`
  return html`<${Page} title="Keys" actions=${html`<${Button} kind="primary" icon="plus" needs="admin" onClick=${() => setCreates(true)}>New key<//>`}>
    <div class="card"><${Loaded} of=${found}>${({ keys }) => html`<div class="scroll" tabindex="0" role="region" aria-label="Keys"><table><thead><tr><th>Name</th><th>Id</th><th>Scopes</th><th class="wide">For</th><th class="wide">Made</th><th>Ends</th><th><span class="sr">Revoke</span></th></tr></thead>
      <tbody>${keys.map(key => html`<tr key=${key.id}><td><span class="name">${key.name || "–"}</span></td><td class="mono">${key.id}</td><td>${key.scopes.map(scope => html`<${Badge} kind=${scope === "admin" ? "warn" : scope === "delete" ? "bad" : "info"}>${scope}<//> `)}</td><td class="wide">${[...key.stores, ...key.spaces.map(prefix => `${prefix}*`), ...key.segments.map(prefix => `…/${prefix}*`)].join(", ") || "everything"}</td><td class="when wide">${ago(key.created * 1000)}</td><td class="when">${key.expires ? ago(key.expires * 1000) : "never"}</td><td class="acts">${key.id === session.id ? html`<${Badge}>yours<//>` : html`<${Button} kind="small" needs="admin" label=${`Revoke ${key.name || key.id}`} onClick=${() => setRevokes(key)}>Revoke<//>`}</td></tr>`)}</tbody></table></div>`}<//></div>
    ${creates && html`<${Create} onClose=${() => { setCreates(false); found.reload() }} />`}
    ${revokes && html`<${Dialog} title=${`Revoke ${revokes.name || revokes.id}?`} onClose=${() => setRevokes(null)}><p>Every request with this key is refused within a second, and its streams end. This cannot be undone.</p><div class="tools"><${Button} onClick=${() => setRevokes(null)}>Cancel<//><${Button} kind="danger" needs="admin" onClick=${async () => { await attempt(() => call("DELETE", `v1/keys/${enc(revokes.id)}`), "The key is revoked"); setRevokes(null); found.reload() }}>Revoke<//></div><//>`}<//>`
}

function Create({ onClose }) {
  const [name, setName] = useState("")
  const [scopes, setScopes] = useState(["read"])
  const [spaces, setSpaces] = useState("")
  const [segments, setSegments] = useState("")
  const [ttl, setTtl] = useState("")
  const [error, setError] = useState("")
  const [made, setMade] = useState(null)
  const parts = text => text.split(",").map(part => part.trim()).filter(Boolean)
  const submit = async event => {
    event.preventDefault()
    if (!scopes.length) { setError("Choose a scope"); return }
    try {
      setMade(await call("POST", "v1/keys", { body: { name, scopes, spaces: parts(spaces), segments: parts(segments), ttl: ttl ? Number(ttl) : null } }))
    } catch (refusal) { setError(refusal.message) }
  }
  if (made) return html`<${Dialog} title="The key is made" onClose=${onClose}><div class="note warn">Copy it now. The server keeps its SHA-256 only, and cannot show it again.</div><${Command} text=${made.key} /><div class="tools"><${Button} kind="primary" onClick=${onClose}>Done<//></div><//>`
  return html`<${Dialog} title="New key" onClose=${onClose}><form onSubmit=${submit} style=${{ padding: 0 }}>
    <${Field} label="Name" hint="A remark for this list"><input class="in" maxlength="200" value=${name} onInput=${event => setName(event.target.value)} /><//>
    <fieldset style=${{ border: 0, padding: 0, margin: 0 }}><legend class="sub">Scopes</legend><div class="checks">${SCOPES.map(scope => html`<label><input type="checkbox" checked=${scopes.includes(scope)} onChange=${event => setScopes(event.target.checked ? [...scopes, scope] : scopes.filter(each => each !== scope))} />${scope}</label>`)}</div></fieldset>
    <${Field} label="Spaces that begin with" hint="Prefixes, with commas between them; empty for all"><input class="in" value=${spaces} onInput=${event => setSpaces(event.target.value)} /><//>
    <${Field} label="Segments that begin with"><input class="in" value=${segments} onInput=${event => setSegments(event.target.value)} /><//>
    <${Field} label="Valid"><select class="in" value=${ttl} onChange=${event => setTtl(event.target.value)}>${Object.entries(LIVES).map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select><//>
    ${error && html`<div class="note bad" role="alert">${error}</div>`}
    <div class="tools"><${Button} onClick=${onClose}>Cancel<//><${Button} kind="primary" type="submit">Make the key<//></div></form><//>`
}
