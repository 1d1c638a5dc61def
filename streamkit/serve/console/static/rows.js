// A list that draws only the rows in sight. Its rows have one height, and the keyboard moves the selection.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./ui.js"

const SPARE = 8
/** More than browsers can scroll is never made. */
const small = matchMedia("(max-width: 860px)")

/**
 * `count` rows, drawn by `row(at)` as {key, kind, body}. `selected`: the number of the chosen row, or -1.
 * `stick`: new rows at the end are scrolled to. `shift`: a counter of rows that were put before the first one, or
 * taken from there (negative); what is in sight stays there.
 */
export function Rows({ count, row, selected, onSelect, onOpen, stick, onStick, shift, onStart, onEnd, label }) {
  const ref = useRef(null)
  const [view, setView] = useState({ top: 0, height: 600 })
  const [tall, setTall] = useState(small.matches ? 46 : 28)
  const shifted = useRef(shift)
  const sticks = useRef(stick)
  sticks.current = stick
  useEffect(() => {
    const place = ref.current
    const changed = () => setTall(small.matches ? 46 : 28)
    const sized = new ResizeObserver(() => setView(was => ({ ...was, height: place.clientHeight })))
    sized.observe(place)
    small.addEventListener("change", changed)
    return () => { sized.disconnect(); small.removeEventListener("change", changed) }
  }, [])
  useLayoutEffect(() => {
    const place = ref.current
    if (shifted.current !== shift) {
      place.scrollTop += (shift - shifted.current) * tall
      shifted.current = shift
    }
    if (stick) place.scrollTop = place.scrollHeight
    setView(was => was.top === place.scrollTop ? was : { ...was, top: place.scrollTop })
  }, [count, shift, stick, tall])
  const scrolled = () => {
    const place = ref.current
    setView({ top: place.scrollTop, height: place.clientHeight })
    const atEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 4
    if (onStick && atEnd !== sticks.current) onStick(atEnd)
    if (place.scrollTop < 200 && onStart) onStart()
    if (place.scrollTop + place.clientHeight > place.scrollHeight - 600 && onEnd) onEnd()
  }
  const show = at => {
    const place = ref.current
    if (at * tall < place.scrollTop) place.scrollTop = at * tall
    else if ((at + 1) * tall > place.scrollTop + place.clientHeight) place.scrollTop = (at + 1) * tall - place.clientHeight
  }
  const pressed = event => {
    const page = Math.max(Math.floor(view.height / tall) - 1, 1)
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -count, End: count }
    if (event.key in steps) {
      event.preventDefault()
      const from = selected < 0 ? (steps[event.key] > 0 ? Math.ceil(view.top / tall) - 1 : Math.floor((view.top + view.height) / tall)) : selected
      const at = Math.min(Math.max(from + steps[event.key], 0), count - 1)
      if (count) { onSelect(at); show(at) }
    } else if (event.key === "Enter" && onOpen) onOpen()
  }
  const first = Math.max(Math.floor(view.top / tall) - SPARE, 0)
  const last = Math.min(Math.ceil((view.top + view.height) / tall) + SPARE, count)
  const drawn = []
  for (let at = first; at < last; at += 1) {
    const { key, kind, body } = row(at)
    drawn.push(html`<div key=${key} id=${`row-${key}`} class=${`row ${kind}`} role="option" aria-selected=${at === selected ? "true" : "false"} aria-setsize=${count} aria-posinset=${at + 1}
      style=${{ top: `${at * tall}px` }} onClick=${() => onSelect(at)}>${body}</div>`)
  }
  const active = selected >= first && selected < last ? `row-${row(selected).key}` : null
  return html`<div class="rows" ref=${ref} tabindex="0" role="listbox" aria-label=${label} aria-activedescendant=${active} onScroll=${scrolled} onKeyDown=${pressed}>
    <div class="space" role="presentation" style=${{ height: `${count * tall}px` }}>${drawn}</div></div>`
}
