// node bench.js DIRECTORY PAYLOADS LOOKUPS: the work of flumedb_beside.py by flumedb; a line of JSON for each figure.
'use strict'
const fs = require('fs')
const path = require('path')
const Flume = require('flumedb')
const Log = require('flumelog-offset')
const Level = require('flumeview-level')
const Reduce = require('flumeview-reduce')
const codec = require('flumecodec')

const [directory, payloads, lookups] = process.argv.slice(2)
const values = fs.readFileSync(payloads, 'utf8').trim().split('\n').map((line) => JSON.parse(line))
const open = () => Flume(Log(path.join(directory, 'log.offset'), { blockSize: 64 * 1024, codec: codec.json }))
const index = () => Level(1, (value) => [value.n])
const done = (act) => new Promise((resolve, reject) => act((error, value) => (error ? reject(error) : resolve(value))))

async function timed (what, count, act) {
  const began = process.hrtime.bigint()
  const before = process.cpuUsage()
  await act()
  const cpu = process.cpuUsage(before)
  const seconds = { clock: Number(process.hrtime.bigint() - began) / 1e9, cpu: (cpu.user + cpu.system) / 1e6 }
  console.log(JSON.stringify({ what, count, ...seconds }))
}

async function main () {
  let db = open().use('index', index())
  await timed('append + index', values.length, async () => {
    for (let at = 0; at < values.length; at += 1000) {
      await done((cb) => db.append(values.slice(at, at + 1000), cb))
    }
    await done((cb) => db.index.get(values.length - 1, cb)) // a read waits for what was appended
  })
  let seed = 1
  await timed('lookups', Number(lookups), async () => {
    for (let at = 0; at < Number(lookups); at++) {
      seed = (seed * 48271) % 2147483647
      const wanted = seed % values.length
      const found = await done((cb) => db.index.get(wanted, cb))
      if (found.n !== wanted) throw new Error(`${wanted} gave ${JSON.stringify(found)}`)
    }
  })
  await done((cb) => db.close(cb))
  db = open()
  await new Promise((resolve) => db.since.once(resolve))
  await timed('index of what is there', values.length, async () => {
    db.use('again', index())
    await done((cb) => db.again.get(values.length - 1, cb))
  })
  await timed('reduce of what is there', values.length, async () => {
    db.use('count', Reduce(1, (state, value) => {
      state = state || {}
      state[value.user] = (state[value.user] || 0) + 1
      return state
    }))
    const counted = await done((cb) => db.count.get(cb))
    if (Object.values(counted).reduce((a, b) => a + b) !== values.length) throw new Error('counted wrongly')
  })
  await done((cb) => db.close(cb))
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1) })
