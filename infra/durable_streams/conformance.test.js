// The protocol's own suite against the server at DURABLE_STREAMS_URL.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

runConformanceTests({ baseUrl: process.env.DURABLE_STREAMS_URL, subscriptions: true })
