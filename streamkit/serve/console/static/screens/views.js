// Views: how far they are, why one is paused, and SQL.

import { call, eachOf, enc, get, spacePath, storePath } from "../api.js"
import { ago, bytes, duration, number, plural, time } from "../format.js"
import { link } from "../router.js"
import { Badge, Button, Empty, Failure, Field, Loaded, Page, Session, Skeleton, Tile, html, useContext, useEffect, useLoad, useRef, useState } from "../ui.js"

const PROGRAM = `class Totals(streamkit.View):
    version = 1
    def setup(self, db): db.execute("create table totals (segment text primary key, n int)")
    def apply(self, db, entries): ...

store.view("totals", Totals(), spaces=["orders"]).run()`

const state = view => view.error ? html`<${Badge} kind="bad" dot>paused<//>` : view.here ? html`<span title="The database of the view is on the server's machine, so it can be queried here"><${Badge} kind="good" dot>on this machine<//></span>` : html`<${Badge}>published<//>`

/** How far a view is behind the newest entry of its spaces, as text. */
function useLags(store, views) {
  const spaces = [...new Set(views.flatMap(view => view.spaces))].slice(0, 50)
  const found = useLoad(spaces.length ? async signal => {
    const newest = {}
    await eachOf(spaces, 3, async space => {
      const page = await get(`${spacePath(store, space)}/entries`, { limit: 1, reverse: true }, signal)
      newest[space] = page.entries[0]?.timestamp ?? 0
    })
    return newest
  } : null, [store, spaces], 15000)
  return view => {
    if (!found.data || !view.spaces.length || !view.spaces.every(space => Object.hasOwn(found.data, space))) return "–"
    const newest = Math.max(...view.spaces.map(space => found.data[space]))
    return newest <= view.timestamp ? "nothing" : view.timestamp ? duration((newest - view.timestamp) / 1000) : "everything"
  }
}

export function Views({ store, parts }) {
  const session = useContext(Session)
  const found = useLoad(session.segments.length ? null : signal => get(`${storePath(store)}/views`, {}, signal), [store], 5000)
  const lag = useLags(store, parts.length || !found.data ? [] : found.data.views)
  if (parts.length) return html`<${View} key=${parts[0]} store=${store} name=${parts[0]} />`
  return html`<${Page} title="Views"><div class="card">${session.segments.length ? html`<${Empty} icon="views" title="This key is for some segments, and views are of whole spaces" />` : html`<${Loaded} of=${found}>${({ views }) => views.length === 0
    ? html`<${Empty} icon="views" title="There are no views on this machine" command=${PROGRAM}><p>A view is a SQLite database that follows spaces. A program builds it.</p><//>`
    : html`<div class="scroll" tabindex="0" role="region" aria-label="Views"><table><thead><tr><th>Name</th><th>State</th><th>Spaces</th><th class="num">Entries</th><th class="num">Behind</th><th class="wide">Last entry</th><th class="num wide">Size</th><th class="num wide">Version</th></tr></thead>
      <tbody>${views.map(view => html`<tr key=${view.name}><td><a class="name" href=${link(store, "views", view.name)}>${view.name}</a></td><td>${state(view)}</td><td>${view.spaces.join(", ")}</td><td class="num">${number(view.entries)}</td><td class="num">${lag(view)}</td><td class="when wide">${ago(view.timestamp)}</td><td class="num wide">${bytes(view.bytes)}</td><td class="num wide">${number(view.version)}</td></tr>`)}</tbody></table></div>`}<//>`}</div><//>`
}

function View({ store, name }) {
  const path = `${storePath(store)}/views/${enc(name)}`
  const found = useLoad(signal => get(path, {}, signal), [path], 5000)
  const lag = useLags(store, found.data ? [found.data] : [])
  return html`<${Page} title=${name} crumbs=${[["Views", link(store, "views")]]} badge=${found.data && state(found.data)}>
    <${Loaded} of=${found}>${view => html`<dl class="tiles"><${Tile} name="Entries applied" value=${number(view.entries)} /><${Tile} name="Behind" value=${lag(view)} /><${Tile} name="Up to" value=${ago(view.timestamp)} more=${time(view.timestamp)} /><${Tile} name="Size" value=${bytes(view.bytes)} /><${Tile} name="Version" value=${number(view.version)} more=${plural(view.published, "published copy", "published copies")} /></dl>
      ${view.error && html`<div class="note bad"><strong>The view is paused. Its function raised:</strong><code>${view.error}</code><span>Fix the program and run it again; view.resume() continues from this entry.</span></div>`}
      ${view.here ? html`<${Sql} path=${path} />` : html`<div class="note">The view is published, and has no database on this machine, so it cannot be queried here.</div>`}`}<//><//>`
}

function Sql({ path }) {
  const tables = useLoad(signal => call("POST", `${path}/query`, { body: { sql: "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite%' order by name", limit: 100 }, signal }).catch(() => ({ rows: [] })), [path])
  const [sql, setSql] = useState("")
  const [state, setState] = useState({})
  const names = (tables.data?.rows || []).map(row => row[0])
  const first = names.find(name => !name.startsWith("streamkit")) || names[0]
  const text = sql || (first ? `select * from "${first.replaceAll('"', '""')}" limit 100` : "")
  const run = async event => {
    event?.preventDefault()
    setState({ busy: true })
    const begun = performance.now()
    try {
      const rows = await call("POST", `${path}/query`, { body: { sql: text, limit: 1000 } })
      setState({ rows, ms: Math.round(performance.now() - begun) })
    } catch (error) { setState({ error }) }
  }
  const { rows } = state
  const begun = useRef(false)
  useEffect(() => { if (first && !begun.current) { begun.current = true; run() } }, [first])
  return html`<form class="card" onSubmit=${run}><header><h2>SQL</h2><span class="grow"></span>${names.map(name => html`<${Button} kind="small ghost" onClick=${() => setSql(`select * from "${name.replaceAll('"', '""')}" limit 100`)}>${name}<//>`)}</header>
    <div class="body"><textarea class="in" rows="4" aria-label="SQL" spellcheck="false" value=${text} onInput=${event => setSql(event.target.value)} onKeyDown=${event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(event) }}></textarea>
      <div class="tools"><${Button} kind="primary" type="submit" icon="play" disabled=${state.busy}>${state.busy ? "Running…" : "Run"}<//><span class="sub">One SELECT. It is stopped after 5 s and gives 1,000 rows at most. Ctrl-Enter runs it.</span></div>
      ${state.error && html`<${Failure} error=${state.error} />`}</div>
    ${rows && html`<div class="scroll" tabindex="0" role="region" aria-label="Rows"><table><thead><tr>${rows.columns.map(column => html`<th>${column}</th>`)}</tr></thead><tbody>${rows.rows.map(row => html`<tr>${row.map(value => html`<td class=${typeof value === "number" ? "num" : ""}>${value === null ? html`<span class="sub">null</span>` : html`<div class="clip">${typeof value === "object" ? JSON.stringify(value) : String(value)}</div>`}</td>`)}</tr>`)}</tbody></table></div>
      <footer><span role="status">${plural(rows.rows.length, "row")}${rows.complete ? "" : ", and there are more"} in ${state.ms} ms</span></footer>`}</form>`
}
