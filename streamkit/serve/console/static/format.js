// Numbers, sizes and times as text.

const whole = new Intl.NumberFormat("en-US")
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 })

export const number = value => value === null || value === undefined ? "–" : whole.format(value)
export const short = value => value === null || value === undefined ? "–" : value < 100000 ? whole.format(value) : compact.format(value)
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`
export const verb = (count, one, many) => count === 1 ? one : many

export function bytes(value) {
  if (value === null || value === undefined) return "–"
  const units = ["B", "KiB", "MiB", "GiB", "TiB"]
  let at = 0
  let left = value
  while (left >= 1024 && at < units.length - 1) { left /= 1024; at += 1 }
  return `${at && left < 100 ? left.toFixed(1) : Math.round(left)} ${units[at]}`
}

export function rate(value) {
  if (!Number.isFinite(value)) return "–"
  return value >= 100 ? number(Math.round(value)) : value >= 10 ? value.toFixed(1) : value.toFixed(value === 0 ? 0 : 2)
}

export function dollars(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–"
  return `$${value === 0 ? "0" : value < 0.01 ? value.toFixed(5) : value.toFixed(2)}`
}

/** The begin of a text that would take a browser seconds to draw. */
export const cut = (text, most) => text.length > most ? `${text.slice(0, most)}… (${number(text.length)} characters; copy it to see all)` : text

/** The number of bytes that base64 text stands for. */
export const binarySize = base64 => Math.floor(base64.replace(/=+$/, "").length * 3 / 4)

const pad = (value, width = 2) => String(value).padStart(width, "0")

export function time(ms) {
  if (!ms) return "–"
  const at = new Date(ms)
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`
}

export const fine = ms => ms ? `${time(ms)}.${pad(ms % 1000, 3)}` : "–"
export const clock = ms => fine(ms).slice(11)

export function ago(ms, now = Date.now()) {
  if (!ms) return "–"
  const seconds = Math.round((now - ms) / 1000)
  if (Math.abs(seconds) < 5) return "now"
  const [count, unit] = span(Math.abs(seconds))
  return seconds < 0 ? `in ${count} ${unit}` : `${count} ${unit} ago`
}

function span(seconds) {
  if (seconds < 90) return [seconds, "s"]
  if (seconds < 5400) return [Math.round(seconds / 60), "min"]
  if (seconds < 129600) return [Math.round(seconds / 3600), "h"]
  return [Math.round(seconds / 86400), "days"]
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "none"
  const [count, unit] = span(Math.round(seconds))
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${count} ${unit}`
}
