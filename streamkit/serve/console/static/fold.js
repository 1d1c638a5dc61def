// The state after each entry of a segment: entries folded into one document.

import { binarySize, plural } from "./format.js"
import { isTree } from "./numbers.js"

/** JSON Merge Patch (RFC 7396). Neither argument is changed. */
export function mergePatch(target, patch) {
  if (!isTree(patch) || Array.isArray(patch)) return patch
  const found = Object.assign(Object.create(null), isTree(target) && !Array.isArray(target) ? target : {})
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete found[name]
    else found[name] = mergePatch(found[name], value)
  }
  return found
}

const unescaped = part => part.replaceAll("~1", "/").replaceAll("~0", "~")

/** The parts of a JSON pointer (RFC 6901). */
function partsOf(pointer) {
  if (typeof pointer !== "string" || (pointer !== "" && !pointer.startsWith("/"))) throw new Error(`${JSON.stringify(pointer)} is no JSON pointer`)
  return pointer.split("/").slice(1).map(unescaped)
}

function find(document, pointer) {
  let found = document
  for (const part of partsOf(pointer)) {
    if (!isTree(found) || !Object.hasOwn(found, part)) throw new Error(`there is nothing at ${pointer}`)
    found = found[part]
  }
  return found
}

function change(document, pointer, work) {
  if (pointer === "") return work({ "": document }, "")[""]
  const parts = partsOf(pointer)
  const root = Array.isArray(document) ? [...document] : Object.assign(Object.create(null), document)
  let place = root
  for (const part of parts.slice(0, -1)) {
    if (!isTree(place) || !Object.hasOwn(place, part)) throw new Error(`there is nothing at ${pointer}`)
    const below = place[part]
    place = place[part] = Array.isArray(below) ? [...below] : isTree(below) ? Object.assign(Object.create(null), below) : below
  }
  if (!isTree(place)) throw new Error(`there is nothing at ${pointer}`)
  work(place, parts.at(-1))
  return root
}

function insert(place, key, value) {
  if (Array.isArray(place)) {
    const at = key === "-" ? place.length : Number(key)
    if (!Number.isInteger(at) || at < 0 || at > place.length) throw new Error(`the list has no place ${key}`)
    place.splice(at, 0, value)
  } else place[key] = value
  return place
}

function remove(place, key) {
  if (!Object.hasOwn(place, key)) throw new Error(`there is no ${key}`)
  if (Array.isArray(place)) place.splice(Number(key), 1)
  else delete place[key]
  return place
}

/** JSON Patch (RFC 6902). An Error if it does not apply. */
export function jsonPatch(document, operations) {
  let found = document
  for (const { op, path, from, value } of operations) {
    switch (op) {
      case "add": found = change(found, path, (place, key) => insert(place, key, value)); break
      case "replace": if (path !== "") find(found, path); found = change(found, path, (place, key) => { place[key] = value; return place }); break
      case "remove": found = change(found, path, remove); break
      case "copy": { const copied = find(found, from); found = change(found, path, (place, key) => insert(place, key, copied)); break }
      case "move": { const moved = find(found, from); found = change(change(found, from, remove), path, (place, key) => insert(place, key, moved)); break }
      case "test": if (JSON.stringify(find(found, path)) !== JSON.stringify(value)) throw new Error(`the test of ${path} failed`); break
      default: throw new Error(`there is no operation ${op}`)
    }
  }
  return found
}

export const isPatch = value => Array.isArray(value) && value.length > 0 && value.every(each => isTree(each) && typeof each.op === "string" && typeof each.path === "string")

export function step(state, entry, mode) {
  if (entry.base64 !== undefined) throw new Error(`its payload is binary, ${plural(binarySize(entry.base64), "byte")}`)
  const value = entry.json !== undefined ? entry.json : entry.text
  if (mode === "last") return value
  if (mode === "patch" || (mode === "auto" && isPatch(value))) return jsonPatch(state ?? {}, value)
  return mergePatch(state, value)
}

/** JSON pointers that differ, with the old and the new value: [pointer, before, after]. */
export function differences(before, after, path = "", found = []) {
  if (found.length > 500 || before === after) return found
  if (isTree(before) && isTree(after) && Array.isArray(before) === Array.isArray(after)) {
    for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
      const at = `${path}/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`
      differences(Object.hasOwn(before, key) ? before[key] : undefined, Object.hasOwn(after, key) ? after[key] : undefined, at, found)
    }
  } else if (JSON.stringify(before) !== JSON.stringify(after)) found.push([path, before, after])
  return found
}
