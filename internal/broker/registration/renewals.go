package registration

import (
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	// renewalsAtOnce is the maximum number of renewals in one request to the source. renewalPause is the time
	// between two such requests.
	renewalsAtOnce = 1000
	renewalPause   = time.Second
)

// pendingLeaseRenewals holds, by cluster, the last Lease renewal. Its size is bounded by the number of accepted
// clusters.
type pendingLeaseRenewals struct {
	mu   sync.Mutex
	last map[string]renewalTime
	// waiting are the clusters whose last renewal was not sent to the present session of the source.
	waiting map[string]struct{}
}

// renewalTime is the time of a renewal, and the issue time of the newest certificate with which an agent renewed.
type renewalTime struct{ at, issued time.Time }

// stamp converts a time for the source. The zero time gives nil.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// note stores a renewal. It returns true if no other renewal was pending.
func (r *pendingLeaseRenewals) note(cluster string, at renewalTime) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = len(r.waiting) == 0
	if was := r.last[cluster]; was.issued.After(at.issued) {
		at.issued = was.issued // the earlier renewal used a newer certificate
	}
	r.last[cluster], r.waiting[cluster] = at, struct{}{}
	return first
}

// repeat makes the last renewal of each cluster pending again, for a new session of the source.
//
// Scenario:
//
//	t1: an agent renews its Lease, and hub-source has not written it to the hub yet.
//	t2: another replica of hub-source becomes the leader.
//	t3: the agent falls silent.
//
// Without this: the hub would declare the cluster disconnected five periods after an earlier renewal.
func (r *pendingLeaseRenewals) repeat() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for cluster := range r.last {
		r.waiting[cluster] = struct{}{}
	}
}

// forget drops the renewal of a cluster.
func (r *pendingLeaseRenewals) forget(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, cluster)
	delete(r.waiting, cluster)
}

// take removes up to renewalsAtOnce pending renewals and returns them in a request, nil if there are none.
func (r *pendingLeaseRenewals) take(now time.Time) *hawserv1.RegistrationRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return nil
	}
	all := &hawserv1.LeaseRenewals{}
	for cluster := range r.waiting {
		if len(all.Renewals) == renewalsAtOnce {
			break
		}
		delete(r.waiting, cluster)
		at := r.last[cluster]
		all.Renewals = append(all.Renewals, &hawserv1.LeaseRenewal{Cluster: cluster, Age: durationpb.New(now.Sub(at.at)), Issued: stamp(at.issued)})
	}
	return &hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Renewals{Renewals: all}}
}

// size returns the number of pending renewals.
func (r *pendingLeaseRenewals) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}
