// The overview of a store: sizes by tier, commits and requests of the server, and the spaces.

import { eachOf, enc, get, spacePath, storePath } from "../api.js"
import { Spark } from "../chart.js"
import { bytes, dollars, duration, number, plural, rate, short, verb } from "../format.js"
import { link } from "../router.js"
import { Button, Copy, Empty, Failure, Fragment, Loaded, Page, Session, Skeleton, Tile, attempt, html, seesAll, useContext, useEffect, useLoad, useRef, useState } from "../ui.js"

const TIERS = { log: "Log", index: "Index", archive: "Archive", internal: "Own records" }

export function Tiers({ tiers }) {
  const total = tiers.reduce((sum, tier) => sum + tier.bytes, 0)
  const label = tiers.map(tier => `${TIERS[tier.name] || tier.name} ${bytes(tier.bytes)}`).join(", ")
  return html`<div class="tier" role="img" aria-label=${label} title=${label}>${total > 0 && tiers.filter(tier => tier.bytes).map(tier => html`<i class=${tier.name} style=${{ flex: `${tier.bytes} 1 0px` }}></i>`)}</div>`
}

export function Legend({ tiers }) {
  return html`<div class="legend">${tiers.map(tier => html`<span><i class=${tier.name}></i>${TIERS[tier.name] || tier.name} ${bytes(tier.bytes)}</span>`)}</div>`
}

const EVERY = 2000

/** Rates since the page was opened, from the counts of the server's process. */
function useRates(store) {
  const found = useLoad(signal => get(`${storePath(store)}/statistics`, {}, signal), [store], EVERY)
  const past = useRef([])
  const now = found.data
  if (now && past.current.at(-1) !== now) {
    if (past.current.length && past.current.at(-1).seconds > now.seconds) past.current = [] // another process, or a new one
    past.current = [...past.current, now].slice(-60)
  }
  const list = past.current
  const steps = list.slice(1).map((each, at) => (each.transactions - list[at].transactions) / Math.max(each.seconds - list[at].seconds, 0.001))
  const count = each => Object.values(each.requests).reduce((sum, value) => sum + value, 0)
  const first = list[0]
  const span = now && first && now.seconds - first.seconds
  const perHour = (of) => span > 0.5 ? (of(now) - of(first)) / span * 3600 : null
  return { now, error: found.error, commits: steps, requests: now && perHour(count), dollars: now && now.dollars !== null ? perHour(each => each.dollars) : null }
}

function Rates({ store }) {
  const rates = useRates(store)
  if (rates.error && !rates.now) return html`<${Failure} error=${rates.error} />`
  if (!rates.now) return html`<div class="card"><${Skeleton} lines=${2} /></div>`
  const now = rates.now
  const last = rates.commits.slice(-3)
  const current = last.length ? last.reduce((sum, each) => sum + each, 0) / last.length : 0
  const looked = now.cache_hits + now.cache_misses
  return html`<dl class="tiles" aria-label="Work of this server process">
    <${Tile} name="Commits a second" value=${rate(current)}>${rates.commits.length > 1 && html`<${Spark} values=${rates.commits} label="Commits a second in the last two minutes" />`}<//>
    <${Tile} name="Commits" value=${short(now.transactions)} more=${`${plural(now.entries, "entry", "entries")} by this process`} />
    <${Tile} name="Storage requests an hour" value=${rates.requests === null ? "–" : short(Math.round(rates.requests))} more=${now.storage ? `${now.storage}://` : null} />
    <${Tile} name="US$ an hour" value=${now.dollars === null ? "–" : dollars(rates.dollars ?? 0)} more=${now.dollars === null ? "price unknown" : now.dollars === 0 && ["file", "memory"].includes(now.storage) ? "local storage is free" : `${dollars(now.dollars)} since the start`} />
    <${Tile} name="Conflicts and retries" value=${short(now.conflicts + now.retries)} more=${looked ? `${Math.round(100 * now.cache_hits / looked)} % of statuses from the cache` : null} />
    <${Tile} name="Open streams" value=${short(now.streams)} more=${`process up ${duration(now.seconds)}`} />
  </dl>`
}

function StoreSize({ store }) {
  const size = useLoad(signal => get(storePath(store), {}, signal), [store], 15000)
  return html`<${Loaded} of=${size} lines=${2}>${found => html`<div class="card"><header><h2>Stored bytes by tier</h2><span class="grow"></span><strong>${bytes(found.stored_bytes)}</strong></header>
    <div class="body"><${Tiers} tiers=${found.tiers} /><${Legend} tiers=${found.tiers} />
    <div class="sub">${plural(found.entries, "entry", "entries")} in ${plural(found.segments, "segment")}, ${bytes(found.payload_bytes)} of payload</div></div></div>`}<//>`
}

export function SpaceTable({ store, limit = 100 }) {
  const session = useContext(Session)
  const [pages, setPages] = useState([])
  const [prefix, setPrefix] = useState("")
  const [sizes, setSizes] = useState(new Map())
  const first = useLoad(signal => get(`${storePath(store)}/spaces`, { limit, prefix }, signal), [store, limit, prefix])
  useEffect(() => setPages([]), [store, prefix])
  const all = first.data ? [first.data, ...pages] : []
  const spaces = all.flatMap(page => page.spaces)
  const names = spaces.map(space => space.name).join("\n")
  const measured = !session.segments.length
  useEffect(() => {
    if (!measured) return undefined
    const abort = new AbortController()
    eachOf(spaces.filter(space => !sizes.has(space.name)), 3, async space => {
      if (abort.signal.aborted) return
      try {
        const size = await get(`${spacePath(store, space.name)}/size`, {}, abort.signal)
        if (!abort.signal.aborted) setSizes(was => new Map(was).set(space.name, size))
      } catch { /* the row stays without figures */ }
    })
    return () => abort.abort()
  }, [names, store])
  const next = all.at(-1)?.next
  const more = () => attempt(async () => {
    const page = await get(`${storePath(store)}/spaces`, { limit, prefix, after: next })
    setPages(was => [...was, page])
  })
  const cell = (name, of) => sizes.has(name) ? of(sizes.get(name)) : "–"
  return html`<div class="card"><header><h2>Spaces</h2><span class="grow"></span>
    <input class="in" style=${{ maxWidth: "220px" }} type="search" placeholder="Begins with…" aria-label="Show spaces that begin with" value=${prefix} onInput=${event => setPrefix(event.target.value)} /></header>
    <${Loaded} of=${first}>${() => spaces.length === 0
      ? prefix ? html`<${Empty} title="No space begins so" />` : html`<${Empty} title="This store has no spaces yet" command=${`echo '{"placed": 3}' | streamkit produce orders order-42 --store ${store}`}><p>A first write creates the space and the segment.</p><//>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Spaces"><table><thead><tr><th>Name</th>${measured && html`<th class="num">Entries</th><th class="num">Segments</th><th class="num">Payload</th><th class="num wide">Stored</th><th class="wide">Tiers</th>`}</tr></thead>
        <tbody>${spaces.map(({ name }) => html`<tr key=${name}><td><a class="name" href=${link(store, "spaces", name)}>${name}</a></td>${measured && html`<td class="num">${cell(name, size => number(size.entries))}</td><td class="num">${cell(name, size => number(size.segments))}</td><td class="num">${cell(name, size => bytes(size.payload_bytes))}</td><td class="num wide">${cell(name, size => bytes(size.stored_bytes))}</td><td class="wide" style=${{ width: "18%" }}>${sizes.has(name) && html`<${Tiers} tiers=${sizes.get(name).tiers} />`}</td>`}</tr>`)}</tbody></table></div>
        ${next && html`<footer><${Button} kind="small" onClick=${more}>Show more<//></footer>`}`}<//></div>`
}

/** Queues that are looked at for dead letters; each costs a request. */
const LOOKED = 50

/** A line for each part that needs a person: paused routes and views, and dead letters in queues. */
function Troubles({ store }) {
  const found = useLoad(async signal => {
    const [{ routes }, { views }, { groups, next }] = await Promise.all(["routes", "views", "queues"].map(kind => get(`${storePath(store)}/${kind}`, kind === "queues" ? { limit: LOOKED } : {}, signal)))
    let dead = 0
    await eachOf(groups, 3, async ({ name }) => { dead += (await get(`${storePath(store)}/queues/${enc(name)}`, {}, signal)).dead })
    return { routes: routes.filter(route => route.state === "paused").length, views: views.filter(view => view.error).length, dead, all: next === null }
  }, [store], 30000)
  if (!found.data) return null
  const { routes, views, dead, all } = found.data
  const parts = [
    [routes, "routes", `${plural(routes, "route")} ${verb(routes, "is", "are")} paused`],
    [views, "views", `${plural(views, "view")} ${verb(views, "is", "are")} paused`],
    [dead, "queues", `${plural(dead, "dead letter")} in ${all ? "queues" : `the first ${LOOKED} queues`}`],
  ].filter(([count]) => count > 0)
  return parts.length > 0 && html`<div class="note warn" role="status"><div class="tools">${parts.map(([, screen, text]) => html`<a key=${screen} href=${link(store, screen)}>${text}</a>`)}</div></div>`
}

export function Overview({ store }) {
  const session = useContext(Session)
  const id = store === "_" && session.store ? session.store : store
  return html`<${Page} title="Overview" badge=${html`<span class="sub mono" title="The store">${id}</span><${Copy} text=${id} label="Copy the store's UUID" />`}>
    ${seesAll(session) && html`<${Troubles} store=${store} /><${Rates} store=${store} /><${StoreSize} store=${store} />`}
    ${!seesAll(session) && html`<div class="note">This key is for some spaces or segments, so the figures of the whole store are hidden.</div>`}
    <${SpaceTable} store=${store} />
  <//>`
}
