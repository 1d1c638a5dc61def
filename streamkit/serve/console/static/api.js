// Requests to /v1 by the session's cookie, names in paths, and refusals as errors.

import { parseJson } from "./numbers.js"

const ROOT = new URL("../", document.baseURI)

export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail || "the server gave no reason")
    this.status = status
    this.code = (problem.type || "").replace("urn:streamkit:", "")
    this.title = problem.title
    this.problem = problem
  }
}

/** A part of a path for a name: any name, also one with slashes. */
export function enc(name) {
  if (/^[A-Za-z0-9_][A-Za-z0-9_.-]*$/.test(name)) return name
  const raw = new TextEncoder().encode(name)
  return `~${btoa(Array.from(raw, byte => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`
}

export function dec(part) {
  try {
    if (!part.startsWith("~")) return decodeURIComponent(part)
    const raw = atob(part.slice(1).replaceAll("-", "+").replaceAll("_", "/"))
    return new TextDecoder().decode(Uint8Array.from(raw, letter => letter.charCodeAt(0)))
  } catch {
    return part
  }
}

export function url(path, query = {}) {
  const found = new URL(path, ROOT)
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== null && value !== "") found.searchParams.set(name, value)
  return found
}

let ended = () => {}
export function onSignedOut(listener) { ended = listener }

/** `text`: a body that is JSON already. */
export async function call(method, path, { body, text: written = body === undefined ? undefined : JSON.stringify(body), query, headers, signal } = {}) {
  let answer
  try {
    answer = await fetch(url(path, query), {
      method,
      signal,
      credentials: "same-origin",
      headers: { ...(written === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: written,
    })
  } catch (error) {
    if (error.name === "AbortError") throw error
    throw new Refusal(0, { title: "The server does not answer", detail: "no connection to the server; it may have ended" })
  }
  const text = await answer.text()
  if (answer.ok) return text ? parseJson(text) : null
  let problem
  try { problem = JSON.parse(text) } catch { problem = { detail: text.slice(0, 300) } }
  if (answer.status === 401 && !path.startsWith("console/")) ended()
  throw new Refusal(answer.status, problem)
}

export const get = (path, query, signal) => call("GET", path, { query, signal })

export const storePath = store => `v1/stores/${enc(store)}`
export const spacePath = (store, space) => `${storePath(store)}/spaces/${enc(space)}`
export const segmentPath = (store, space, segment) => `${spacePath(store, space)}/segments/${enc(segment)}`

/** Runs at most `most` loads at once. */
export async function eachOf(items, most, work) {
  let at = 0
  const next = async () => { while (at < items.length) { const item = items[at]; at += 1; await work(item) } }
  await Promise.all(Array.from({ length: Math.min(most, items.length) }, next))
}
