// Package route decides who is sent what: an [Index] of subscriptions by
// (cluster, data type) and (owner, data type), and per subscription a
// [Mailbox], the set of records that subscription still has to be sent.
//
// A mailbox holds keys, not events: a subscriber that is slow, stuck or away
// costs a few bytes per work and delays nobody, and when it reads again it gets
// the latest state of each record once. The package is pure; the broker gives
// every mailbox to exactly one stream and guards it.
package route
