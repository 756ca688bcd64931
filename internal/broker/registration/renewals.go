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

// pendingLeaseRenewals holds, by cluster, the last Lease renewal that was not sent to the source yet. Its size
// is bounded by the number of accepted clusters.
type pendingLeaseRenewals struct {
	mu      sync.Mutex
	waiting map[string]renewalTime
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
	if r.waiting == nil {
		r.waiting = map[string]renewalTime{}
	}
	first = len(r.waiting) == 0
	if was := r.waiting[cluster]; was.issued.After(at.issued) {
		at.issued = was.issued // the pending renewal used a newer certificate
	}
	r.waiting[cluster] = at
	return first
}

// forget drops the renewal of a cluster.
func (r *pendingLeaseRenewals) forget(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, cluster)
}

// take removes up to renewalsAtOnce renewals and returns them in a request, nil if there are none.
func (r *pendingLeaseRenewals) take(now time.Time) *hawserv1.RegistrationRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return nil
	}
	all := &hawserv1.LeaseRenewals{}
	for cluster, at := range r.waiting {
		if len(all.Renewals) == renewalsAtOnce {
			break
		}
		delete(r.waiting, cluster)
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
