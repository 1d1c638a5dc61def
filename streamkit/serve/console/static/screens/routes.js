// Routes: from where to where, how far, and why one is paused.

import { call, enc, get, storePath } from "../api.js"
import { duration, number, plural, time } from "../format.js"
import { link } from "../router.js"
import { Badge, Button, Dialog, Empty, Icon, Loaded, Page, Session, attempt, html, useContext, useLoad, useRef, useState } from "../ui.js"

const KINDS = { current: "good", behind: "info", paused: "bad", unknown: "" }

export function Routes({ store }) {
  const session = useContext(Session)
  const found = useLoad(session.segments.length ? null : async signal => {
    const { routes } = await get(`${storePath(store)}/routes`, {}, signal)
    return Promise.all(routes.map(route => get(`${storePath(store)}/routes/${enc(route.name)}`, {}, signal).catch(() => route)))
  }, [store], 4000)
  return html`<${Page} title="Routes">${session.segments.length ? html`<div class="card"><${Empty} icon="routes" title="This key is for some segments, and routes are of whole spaces" /></div>` : html`<${Loaded} of=${found}>${routes => routes.length === 0
    ? html`<div class="card"><${Empty} icon="routes" title="This store has no routes" command=${'store.route("audit", source="orders", target="audit").run()'}><p>A route copies entries from one space to another, each exactly once. A program runs it.</p><//></div>`
    : routes.map(route => html`<${Route} key=${route.name} store=${store} route=${route} onChange=${found.reload} />`)}<//>`}<//>`
}

function Route({ store, route, onChange }) {
  const session = useContext(Session)
  const id = store === "_" ? session.store : store
  const [skips, setSkips] = useState(false)
  const control = async (action, skip = false) => {
    await attempt(() => call("POST", `${storePath(store)}/routes/${enc(route.name)}`, { body: { action, skip } }), action === "pause" ? "The route is paused" : "The route continues as soon as its program looks")
    setSkips(false)
    onChange()
  }
  const failed = route.error
  const last = useRef(null) // /v1 returns an error only while the route is paused
  if (failed) last.current = failed
  return html`<section class="card" aria-label=${`Route ${route.name}`}><header><h2>${route.name}</h2><${Badge} kind=${KINDS[route.state]} dot>${route.state}<//><span class="grow"></span>
      ${route.state === "paused" ? html`<${Button} kind="small primary" needs="admin" icon="play" onClick=${() => control("resume")}>Resume<//>${failed && failed.sequence > 0 && html`<${Button} kind="small" needs="admin" onClick=${() => setSkips(true)}>Skip the entry…<//>`}` : html`<${Button} kind="small" needs="admin" onClick=${() => control("pause")}>Pause<//>`}</header>
    <div class="body">${failed && html`<div class="note bad"><strong>Why it is paused</strong><code>${failed.error}</code>${failed.sequence > 0 ? html`<span>At <a href=${link(store, "spaces", route.source, "segments", failed.segment, { from: "sequence", at: failed.sequence, entry: failed.sequence })}>${failed.segment} #${number(failed.sequence)}</a> of ${time(failed.timestamp)}. The route waits there, so that nothing is lost or out of order.</span>` : html`<span>The target refuses. Resume when it takes entries again.</span>`}</div>`}
      ${!failed && last.current && html`<p class="sub">Last error: <code>${last.current.error}</code></p>`}
      <div class="route"><a href=${link(store, "spaces", route.source)}>${route.source}</a><${Icon} name="next" />${route.target_store && route.target_store !== id ? html`<span>${route.target} in store <span class="mono">${route.target_store}</span></span>` : html`<a href=${link(store, "spaces", route.target)}>${route.target}</a>`}</div>
      <dl class="strip"><div><dt>Read</dt><dd>${number(route.entries)}</dd></div><div><dt>Copied</dt><dd>${number(route.copied)}</dd></div><div><dt>Left out</dt><dd>${number(route.skipped)}</dd></div>${route.missing > 0 && html`<div><dt>Removed before they were copied</dt><dd>${number(route.missing)}</dd></div>`}<div><dt>Behind</dt><dd>${route.state === "current" ? "nothing" : duration(route.behind)}</dd></div></dl></div>
    ${skips && html`<${Dialog} title="Go on without this entry?" onClose=${() => setSkips(false)}><p>The route never copies ${failed.segment} #${number(failed.sequence)}. The entry itself stays in ${route.source}.</p><div class="tools"><${Button} onClick=${() => setSkips(false)}>Cancel<//><${Button} kind="danger" needs="admin" onClick=${() => control("resume", true)}>Skip it<//></div><//>`}</section>`
}
