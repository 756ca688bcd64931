// Package core decides what a hub source does for each work. It is told what
// happened (an informer shows a work, a status arrived, the broker answered), and
// [Core.Next] says what to do next for one work or cluster as an [Effect]; whoever
// carries it out gives the result back to [Core.Done]. There is no goroutine, socket,
// lock or logger in it, and the clock is a function, so that a simulator can run it
// step by step.
//
// # What is known carries its stamp
//
// Of each work there is one reading of the hub and one of the broker. No flag says
// whether a reading still counts; that follows from its stamp.
//
//	reading             valid for            later is                      written in
//	of the hub, tags    one life of the hub  the higher resource version   hubobservation.go
//	of the broker       one subscription     the higher store revision     brokerobservation.go
//
// A receipt has the revision of the broker's store at which it was decided, a report
// the one at which it was taken. A row of the inventory counts by its own revision, that
// there is no row by that of the listing. So they may come in any order.
//
// What the broker's reading and the hub's contradict each other in (the broker lacks
// a work that an earlier process began to publish, or has something later) is decided
// only after the hub itself was asked: a slow informer is never evidence. One work is
// asked for by name, more than ten of a cluster by one consistent list (hubqueries.go).
//
// # Subscriptions
//
// What is dangerous when it is late, and has no known outcome, ends the subscription:
// a release, a word about comparisons, a publish before a release. The broker takes
// nothing any more that names a subscription which is over. The cursor and what is
// known of the hub stay, so the next subscription compares sums and reads no records.
// Such ends are backed off.
//
// # Lives of a hub
//
// In one life of a hub generations and resource versions only grow, and a uid that is
// gone does not come back. A hub that contradicts that went back in time, as after a
// restore from a backup, and so did one that is behind what the broker was told of it.
//
//	living ──the hub went back──► over ──doubt is saved on the hub──► living (life n+1)
//
// While a life is over nothing is decided. The next one begins with nothing but what
// is saved on the hub, and with informers that begin with a consistent list; what older
// informers show is dropped. The doubt names the position that it was found against, so
// that it ends no other life. As long as it lasts nothing is deleted because it is
// missing. It ends when nothing is missing any more and the broker knows where the hub is
// (epochs.go).
//
// # Parts
//
// [Core] only passes on. The fleet has the works by cluster and the subscription; lives,
// cursor and questions stand on it, comparisons on those, and specs, statuses and releases
// on all. A part never calls one above it: what one leaves, another finds in the readings.
package core
