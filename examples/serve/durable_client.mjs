// Write to a stream and follow it with the npm client of the Durable Streams protocol:
//
//   streamkit serve --url file:///tmp/streamkit-serve --store 7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55
//   npm install @durable-streams/client
//   node examples/serve/durable_client.mjs
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"

const server = process.argv[2] ?? "http://127.0.0.1:4437"
const url = `${server}/v1/stream/readings/node`
const readings = await DurableStream.create({ url, contentType: "application/json" })

// Each batch is written exactly once, also if its answer is lost and it is sent again.
const producer = new IdempotentProducer(readings, "example", { autoClaim: true })
for (let number = 0; number < 10; number++) producer.append(JSON.stringify({ reading: number }))
await producer.flush()

const response = await stream({ url, offset: "-1", live: "sse" })
await new Promise((resolve) => {
  response.subscribeJson(async (batch) => {
    for (const message of batch.items) {
      console.log(JSON.stringify(message))
      if (message.reading === 9) resolve()
    }
  })
})
process.exit(0)
