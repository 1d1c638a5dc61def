// The filter of entries: words, and conditions such as customer.id=42 or segment:order-4.

export function parseFilter(text) {
  const terms = text.match(/"[^"]*"|\S+/g) || []
  return terms.map(term => {
    const plain = term.replaceAll('"', "").toLowerCase()
    const named = /^(segment|seq|event|meta):(.*)$/.exec(plain)
    if (named) return { kind: named[1], value: named[2] }
    const pair = /^([\w.[\]-]+)=(.*)$/.exec(term.replaceAll('"', ""))
    if (pair) return { kind: "path", path: pair[1].split("."), value: pair[2].toLowerCase() }
    return { kind: "text", value: plain }
  })
}

const texts = new WeakMap()

function textOf(entry) {
  let text = texts.get(entry)
  if (text === undefined) {
    const payload = entry.json !== undefined ? JSON.stringify(entry.json) : entry.text ?? ""
    text = `${entry.segment}\n${payload}\n${entry.metadata ? JSON.stringify(entry.metadata) : ""}`.toLowerCase()
    texts.set(entry, text)
  }
  return text
}

function at(value, path) {
  let found = value
  for (const part of path) {
    if (found === null || typeof found !== "object" || !Object.hasOwn(found, part)) return undefined
    found = found[part]
  }
  return found
}

function matchesTerm(entry, term) {
  switch (term.kind) {
    case "segment": return entry.segment.toLowerCase().startsWith(term.value)
    case "seq": return String(entry.sequence) === term.value
    case "event": return (entry.metadata?.event || "").toLowerCase().includes(term.value)
    case "meta": return JSON.stringify(entry.metadata || {}).toLowerCase().includes(term.value)
    case "path": {
      const found = at(entry.json, term.path) ?? at(entry.metadata, [term.path.join(".")])
      return found !== undefined && (typeof found === "object" ? JSON.stringify(found) : String(found)).toLowerCase() === term.value
    }
    default: return textOf(entry).includes(term.value)
  }
}

export const matches = (item, terms) => item.gap === undefined && terms.every(term => matchesTerm(item, term))
