// Package core decides what hub-source does for each work. Its inputs are events: an informer shows a work, a
// status arrives, the broker answers. [Core.Next] returns the next step for one work or cluster as an [Effect].
// The caller runs it and passes the result to [Core.Done]. The package has no goroutine, socket, lock or
// logger, and its clock is a function. So a simulator can run it step by step.
//
// # Observations and their stamps
//
// Each work has one observation of the hub and one of the broker. The stamp of an observation decides whether
// it is valid; there is no extra flag.
//
//	observation         valid for         later is                      written in
//	of the hub, tags    one hub epoch     the higher resource version   hubobservation.go
//	of the broker       one subscription  the higher store revision     brokerobservation.go
//
// A receipt has the revision of the broker's store at its decision, and a report the revision of its
// acceptance. A row of the inventory has its own revision, and a missing row that of the listing. So they may
// arrive in any order.
//
// The observations of hub and broker may contradict each other. For example, the broker lacks a work that an
// earlier process began to publish, or has a later version. Then the core queries the hub itself before it
// decides, because a slow informer is no evidence. It queries one work by name, and more than ten works of a
// cluster by one consistent list (hubqueries.go).
//
// # Subscriptions
//
// Some events do harm when they arrive late: a release, a sync report, a publish before a release. If the
// outcome of such an event is unknown, the core ends the subscription. The broker then accepts no events that
// name it. The cursor and the state of the hub stay, so the next subscription compares digests and reads no
// records. The core backs off such ends.
//
// # Hub epochs
//
// In one hub epoch, generations and resource versions only grow, and a deleted uid does not come back. A hub
// that contradicts this went back in time, as after a restore from a backup. So did a hub that is behind the
// position that the broker knows.
//
//	valid ──the hub went back──► over ──suspicion is saved on the hub──► valid (epoch n+1)
//
// While an epoch is over, the core decides nothing. The next epoch begins with the state that is saved on the
// hub, and with informers that begin with a consistent list. Objects from older informers are dropped. The
// saved rollback suspicion names the position at which it was found, so that it ends no other epoch. While it
// lasts, nothing is deleted because it is missing. It ends when nothing is missing and the broker knows the
// position of the hub (epochs.go).
//
// # Parts
//
// [Core] only connects the parts. The work index holds the works by cluster, and the subscription. Hub epochs,
// cursor and hub queries use the index. Cluster sync uses those; specs, statuses and releases use all. A part
// never calls one above it: the upper part finds the result in the observations.
package core
