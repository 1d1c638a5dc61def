// The entries that a screen holds: pages from /v1 in both directions, and those that come live.

import { get, segmentPath, spacePath, url } from "./api.js"
import { parseJson } from "./numbers.js"

const PAGE = 500
/** Entries that are held; those at the other end go first. */
export const MOST = 50000

const isGap = item => item.gap !== undefined
const idOf = item => isGap(item) ? `g ${item.gap.segment} ${item.gap.first_sequence} ${item.gap.last_sequence}` : `${item.segment} ${item.sequence}`

/** Entries of a space or segment, the oldest first. `changed` is called when they are others. */
export class Reading {
  constructor(store, space, segment, start, changed) {
    this.place = `${segment === null ? spacePath(store, space) : segmentPath(store, space, segment)}/entries`
    this.segment = segment
    this.items = []
    this.version = 0
    this.shift = 0
    this.dropped = 0
    this.earlier = false
    this.later = false
    this.loading = false
    this.error = null
    this.live = false
    this.state = "off"
    this.next = null
    this.before = null
    this.received = 0
    this._changed = changed
    this._source = null
    this._arrived = []
    this._frame = 0
    this._ended = false
    this._start(start)
  }

  close() {
    this._ended = true
    this.stop()
  }

  changed() {
    this.version += 1
    if (!this._ended) this._changed(this.version)
  }

  async _start({ kind, value }) {
    const query = { limit: PAGE }
    const isSegment = this.segment !== null
    if (kind === "end") return this._load("first", { ...query, reverse: true })
    if (kind === "time") query.from = String(value)
    else if (kind === "sequence" && value > 1) query.after = value - 1
    else if (kind === "offset" && !isSegment) query.offset = value
    else query.from = "beginning"
    return this._load("first", query, kind)
  }

  async _load(where, query, kind) {
    if (this.loading) return
    this.loading = true
    this.changed()
    try {
      const page = await get(this.place, query)
      if (this._ended) return
      this.error = null
      if (query.reverse) this._before(page, where)
      else this._after(page, where, kind)
    } catch (error) {
      this.error = error
    }
    this.loading = false
    this.changed()
  }

  _after(page, where, kind) {
    const first = page.entries[0]
    if (where === "first" && kind === "beginning" && this.segment !== null && first && !isGap(first) && first.sequence > 1) {
      // A read from the beginning begins at the first remaining entry, and reports no gap before it.
      this.items.push({ gap: { segment: this.segment, first_sequence: 1, last_sequence: first.sequence - 1, reason: "removed" } })
    }
    this._append(page.entries)
    this.next = page.next
    this.later = !page.caught_up
    if (where === "first" && kind !== "beginning") {
      this.earlier = true
      this.before = this._first()
    }
  }

  _before(page, where) {
    const known = new Set(this.items.slice(0, 2000 + this._together()).map(idOf))
    const fresh = page.entries.filter(item => !known.has(idOf(item))).reverse()
    this.earlier = !page.caught_up && (fresh.length > 0 || this.segment !== null)
    this.items = [...fresh, ...this.items]
    if (where === "first") this.next = page.end
    else this.shift += fresh.length
    this.before = this.segment !== null ? page.next : this._first()
    if (this.items.length > MOST) {
      this.items.length = MOST
      this.later = true
      const last = this._last()
      if (last) this.next = this.segment !== null ? last.sequence : last.offset
    }
  }

  _first() {
    const first = this.items.find(item => !isGap(item))
    return first && (this.segment !== null ? first.sequence : first.timestamp)
  }

  /** How many of the first entries have the time of the first one. */
  _together() {
    const end = this.items.findIndex(item => !isGap(item) && item.timestamp !== this.before)
    return end < 0 ? this.items.length : end
  }

  _last() {
    return this.items.findLast(item => !isGap(item))
  }

  _append(items) {
    for (const item of items) this.items.push(item)
    const over = this.items.length - MOST
    if (over > 0) {
      this.items.splice(0, over)
      this.shift -= over
      this.dropped += over
      this.earlier = true
      this.before = this._first()
    }
  }

  /** Loads the page before the first entry. */
  loadEarlier(limit = PAGE) {
    if (!this.earlier || this.loading) return undefined
    const query = { limit, reverse: true }
    if (this.segment !== null) {
      if (this.before) query.before = this.before
    } else if (this.before) { // entries of that very time come once more
      query.until = this.before
      query.limit = Math.min(limit + this._together(), 10000)
      query.max_bytes = 8 << 20
    }
    return this._load("before", query)
  }

  /** Loads the page after the last entry. */
  loadLater(limit = PAGE) {
    if (!this.later || this.loading || this.live || this.next === null) return undefined
    return this._load("after", this.segment !== null ? { limit, after: this.next } : { limit, offset: this.next })
  }

  // -- live ------------------------------------------------------------------------------------------------------

  /** Follows the end. If entries in between were not loaded, the list starts again without them. */
  follow() {
    if (this.live) return
    this.live = true
    this.state = "connecting"
    if (this.later) { this.items = []; this.later = false; this.earlier = true; this.next = null; this.before = null }
    const query = this.next === null || this.next === undefined ? { from: "end" } : this.segment !== null ? { after: this.next } : { offset: this.next }
    const source = this._source = new EventSource(url(this.place, query))
    source.addEventListener("open", () => { this.state = "live"; this.changed() })
    source.addEventListener("entries", event => this._arrive(event, parseJson(event.data)))
    source.addEventListener("gap", event => this._arrive(event, [JSON.parse(event.data)]))
    source.addEventListener("caught-up", event => { if (event.lastEventId) this._reached(event.lastEventId) })
    source.addEventListener("bye", event => {
      if (JSON.parse(event.data).reason === "rotate") { this.stop(); this.error = new Error("The session has ended. Sign in again."); this.changed() }
    })
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) {
        this.stop()
        this.error = new Error("The live stream was refused. Start it again, or sign in again.")
      } else this.state = "connecting"
      this.changed()
    })
    this.changed()
  }

  stop() {
    this._source?.close()
    this._source = null
    this.live = false
    this.state = "off"
    this._flush()
  }

  _reached(id) {
    this.next = this.segment !== null ? Number(id) : id
  }

  _arrive(event, items) {
    if (event.lastEventId) this._reached(event.lastEventId)
    this._arrived.push(items)
    if (!this._frame) this._frame = requestAnimationFrame(() => this._flush())
  }

  /** Everything that came since the last frame is drawn at once. */
  _flush() {
    cancelAnimationFrame(this._frame)
    this._frame = 0
    if (!this._arrived.length) return
    const known = new Set(this.items.slice(-500).map(idOf))
    for (const items of this._arrived) {
      const fresh = known.size ? items.filter(item => !known.has(idOf(item))) : items
      this.received += fresh.length
      this._append(fresh)
    }
    this._arrived = []
    this.changed()
  }
}

export { idOf, isGap }
