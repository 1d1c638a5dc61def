// Addresses within the page: #/{store}/{part}/{part}…?name=value. A part is a name as the paths of /v1 have it.

import { dec, enc } from "./api.js"
import { useEffect, useState } from "./ui.js"

export function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?")
  const parts = path.split("/").filter(Boolean).map(dec)
  return { store: parts[0] || "", parts: parts.slice(1), query: new URLSearchParams(query || "") }
}

export function link(store, ...parts) {
  const last = parts.at(-1)
  const query = last && typeof last === "object" ? new URLSearchParams(Object.entries(parts.pop()).filter(([, value]) => value !== undefined && value !== null && value !== "")) : ""
  return `#/${[store, ...parts].map(enc).join("/")}${String(query) && `?${query}`}`
}

export function useHash() {
  const [hash, setHash] = useState(location.hash)
  useEffect(() => {
    const changed = () => setHash(location.hash)
    addEventListener("hashchange", changed)
    return () => removeEventListener("hashchange", changed)
  }, [])
  return parse(hash)
}
