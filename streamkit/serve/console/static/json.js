// JSON as a tree that opens and closes. Large parts are drawn when they are opened.

import { cut } from "./format.js"
import { isTree } from "./numbers.js"
import { Button, html, useState } from "./ui.js"

const SHOWN = 100
const OPEN = 3
const LONGEST = 10000

const escaped = key => key.replaceAll("~", "~0").replaceAll("/", "~1")

function Leaf({ value }) {
  if (typeof value === "string") return html`<span class="s">${cut(JSON.stringify(value), LONGEST)}</span>`
  if (typeof value === "number" || typeof value === "object" && value !== null) return html`<span class="n">${value.rawJSON ?? String(value)}</span>`
  return html`<span class="w">${String(value)}</span>`
}

function Node({ name, value, depth, path, changed }) {
  const tree = isTree(value)
  const size = tree ? Object.keys(value).length : 0
  const [open, setOpen] = useState(depth < OPEN && size <= SHOWN)
  const [most, setMost] = useState(SHOWN)
  const mark = changed && changed.has(path) ? "changed" : null
  const label = name === null ? "" : html`<span class="k">${name}</span><span class="p">: </span>`
  if (!tree || size === 0) return html`<li><span class=${mark}>${label}${tree ? html`<span class="p">${Array.isArray(value) ? "[]" : "{}"}</span>` : html`<${Leaf} value=${value} />`}</span></li>`
  const ends = Array.isArray(value) ? "[]" : "{}"
  const keys = open ? Object.keys(value).slice(0, most) : []
  return html`<li><button type="button" aria-expanded=${open ? "true" : "false"} aria-label=${`${open ? "Close" : "Open"} ${name === null ? "the document" : name}`} onClick=${() => setOpen(!open)}>${open ? "▾" : "▸"}</button><span class=${mark}>${label}<span class="p">${open ? ends[0] : `${ends[0]} ${size} ${ends[1]}`}</span></span>
    ${open && html`<ul>${keys.map(key => html`<${Node} key=${key} name=${key} value=${value[key]} depth=${depth + 1} path=${`${path}/${escaped(key)}`} changed=${changed} />`)}
      ${size > most && html`<li><${Button} kind="ghost small" onClick=${() => setMost(most + 1000)}>${size - most} more<//></li>`}</ul><span class="p">${ends[1]}</span>`}</li>`
}

/** `changed`: a set of JSON pointers to mark. */
export function Tree({ value, changed, label = "JSON" }) {
  return html`<div class="tree" tabindex="0" role="region" aria-label=${label}><ul style=${{ border: 0, marginLeft: "0px", paddingLeft: "14px" }}><${Node} name=${null} value=${value} depth=${0} path="" changed=${changed} /></ul></div>`
}
