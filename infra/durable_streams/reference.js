// The protocol's reference server on a free port, with files in the folder named by the first argument (default: in memory).
// Prints its URL. Ends with its standard input.
import { DurableStreamTestServer } from "@durable-streams/server"

const server = new DurableStreamTestServer({ port: 0, host: "127.0.0.1", dataDir: process.argv[2] })
await server.start()
console.log(server.url)
process.stdin.resume().on("end", () => process.exit(0))
