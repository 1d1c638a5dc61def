// Charts: uPlot in the colours of the theme.

import { html, useEffect, useRef } from "./ui.js"
import { bytes, number, short, time } from "./format.js"

const token = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

/** A colour of the theme, as canvas knows it: it resolves light-dark(). */
function colour(name) {
  const probe = document.createElement("i")
  probe.style.color = `var(${name})`
  document.body.append(probe)
  const found = getComputedStyle(probe).color
  probe.remove()
  return found || token(name)
}

const axis = (size, values) => ({
  stroke: colour("--text-3"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
  font: '11px "Inter", system-ui, sans-serif', size, gap: 6, ...(values ? { values } : {}),
})

/** Distances of ticks for counts. */
const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map(digit => digit * 10 ** power)).flat()

const two = value => String(value).padStart(2, "0")

/** Ticks of time: the day where it changes, else the time as finely as the distance of the ticks needs it. */
function ticks(_, values, __, ___, step) {
  let day = ""
  return values.map(value => {
    const at = new Date(value * 1000)
    const date = `${two(at.getMonth() + 1)}-${two(at.getDate())}`
    const time = step >= 86400 ? "" : step >= 60 ? `${two(at.getHours())}:${two(at.getMinutes())}` : step >= 1 ? `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}` : `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`
    const first = date !== day
    day = date
    return time && first ? `${time}\n${date}` : time || date
  })
}

/** Bars of entries by time. `onSelect(from, until)` is called for a dragged range. */
export function Activity({ data, onSelect }) {
  const ref = useRef(null)
  useEffect(() => {
    const place = ref.current
    const xs = data.counts.map((_, at) => (data.since + at * data.step) / 1000)
    const end = data.since + data.step * Math.max(Math.floor((data.until - data.since) / data.step) + 1, 20) // of the last bar
    let plot = null
    const draw = () => {
      plot?.destroy()
      if (!window.uPlot) return // the browser could not load it; the label below has the figures
      plot = new window.uPlot({
        width: Math.max(place.clientWidth - 12, 120), height: 190, padding: [10, 8, 0, 0], legend: { show: true, live: true },
        cursor: { y: false, drag: { x: true, y: false, setScale: false } },
        scales: { x: { time: true, range: () => [data.since / 1000, end / 1000] }, y: { range: (_, low, high) => [0, Math.max(high * 1.12, 1)] } },
        axes: [{ ...axis(42, ticks), space: 92 }, { ...axis(44, (_, ticks) => ticks.map(short)), incrs: WHOLE }],
        series: [
          { label: "From", value: (_, value) => value === null ? "–" : time(Math.round(value * 1000)) },
          { label: "Entries", value: (_, value, series, at) => value === null ? "–" : `${number(value)} · ${bytes(data.bytes[at])}`,
            stroke: colour("--accent"), fill: colour("--accent"), width: 0, points: { show: false },
            paths: window.uPlot.paths.bars({ size: [0.82, 40], align: 1, radius: 0.12 }) },
        ],
        hooks: { setSelect: [self => {
          if (!onSelect || self.select.width < 4) return
          const ends = [self.select.left, self.select.left + self.select.width].map(x => Math.round(self.posToVal(x, "x") * 1000))
          self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false)
          onSelect(...ends)
        }] },
      }, [xs, data.counts], place)
    }
    draw()
    let width = place.clientWidth
    const resized = new ResizeObserver(() => {
      if (plot && place.clientWidth !== width) { width = place.clientWidth; plot.setSize({ width: Math.max(width - 12, 120), height: 190 }) }
    })
    resized.observe(place)
    const scheme = matchMedia("(prefers-color-scheme: dark)")
    addEventListener("themechange", draw)
    scheme.addEventListener("change", draw)
    return () => { resized.disconnect(); removeEventListener("themechange", draw); scheme.removeEventListener("change", draw); plot?.destroy() }
  }, [data])
  const total = data.counts.reduce((sum, count) => sum + count, 0)
  return html`<div class="plot" ref=${ref} role="img" aria-label=${`Chart: ${number(total)} entries from ${time(data.since)} to ${time(data.until)}, at most ${number(Math.max(...data.counts))} in one bar`}></div>`
}

/** A small line of the latest values. */
export function Spark({ values, label }) {
  const most = Math.max(...values, 1e-9)
  const points = values.map((value, at) => `${(at / Math.max(values.length - 1, 1)) * 100},${21 - (value / most) * 19}`).join(" ")
  return html`<svg class="spark" viewBox="0 0 100 22" preserveAspectRatio="none" role="img" aria-label=${label}><polyline points=${points} fill="none" stroke="var(--accent)" stroke-width="1.5" vector-effect="non-scaling-stroke" /></svg>`
}
